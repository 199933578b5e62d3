"""Media of prompt rows: found when rows are read, decoded when looked at, bounded in memory, named when wrong."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from omni_portable.config.schema import DataConfig, MediaConfig, TargetConfig
from omni_portable.contracts.errors import DataError
from omni_portable.contracts.rollout import Extent
from omni_portable.data import cells, lazy
from omni_portable.data.fields import input_media, training_media
from omni_portable.data.prompts import load_prompts
from tests.support.media import mp4, picture, png, tone, wav

IMAGE = {"image": MediaConfig(modality="image")}


def load(path: Path, media: dict[str, MediaConfig] = IMAGE, **targets: list[str]):
    data = DataConfig(media=media, targets={name: TargetConfig(fields=fields) for name, fields in targets.items()})
    fields = training_media(
        data, {"image": "image", "video": "video", "audio": "audio", "text": "text"}, Extent(8, 12, 3, 5.0)
    )
    return load_prompts(str(path), split="train", media=fields if targets else input_media(data))


def jsonl(path: Path, *rows: dict) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def parquet(path: Path, rows: list[dict], group: int = 2) -> Path:
    pq.write_table(pa.Table.from_pylist(rows), path, row_group_size=group)
    return path


def rows_of_bytes(count: int) -> list[dict]:
    return [{"prompt": f"p{i}", "level": i, "image": {"bytes": png(i), "path": "x.png"}} for i in range(count)]


@pytest.mark.parametrize("group", [1, 3, 100])
def test_bytes_stay_in_the_parquet_file_until_they_are_looked_at(tmp_path, group):
    rows = load(parquet(tmp_path / "p.parquet", rows_of_bytes(70), group))
    assert [row.metadata for row in rows[:2]] == [{"level": 0}, {"level": 1}]
    assert (list(rows[5].media), len(rows[5].media)) == (["image"], 1)
    for index in (69, 0, 33, 34):
        assert torch.equal(rows[index].media["image"].data, picture(index).data)


def test_only_the_newest_media_are_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(lazy, "CACHE_BYTES", 3 * 8 * 12 * 4)
    monkeypatch.setattr(cells, "CACHE_BYTES", 1)
    rows = load(parquet(tmp_path / "p.parquet", rows_of_bytes(100), 10))
    for row in rows:
        assert row.media["image"] is row.media["image"], "the samples of a prompt share it"
    assert lazy._decoded._bytes <= lazy.CACHE_BYTES
    assert len(cells._batches._kept) == 1


def test_paths_are_relative_to_the_file_and_must_exist(tmp_path):
    (tmp_path / "pictures").mkdir()
    (tmp_path / "pictures" / "a.png").write_bytes(png(4))
    good = {"prompt": "a", "image": "pictures/a.png"}
    (row,) = load(jsonl(tmp_path / "p.jsonl", good))
    assert torch.equal(row.media["image"].data, picture(4).data)
    assert row.metadata == {}
    with pytest.raises(DataError, match=r"p.jsonl row 2: field 'image': there is no file .*pictures/b.png"):
        load(jsonl(tmp_path / "p.jsonl", good, {"prompt": "b", "image": "pictures/b.png"}))


def test_a_path_inside_a_struct_without_bytes(tmp_path):
    (tmp_path / "a.png").write_bytes(png(4))
    row = {"prompt": "a", "image": {"bytes": None, "path": "a.png"}}
    path = parquet(tmp_path / "p.parquet", [row, rows_of_bytes(1)[0]])
    assert torch.equal(load(path)[0].media["image"].data, picture(4).data)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (None, "is missing|the medium is missing"),
        ("", "the medium is missing"),
        ([], "the medium is missing"),
        ({}, "the medium is missing"),
        (7, "a int is no medium"),
        ("/9j/4AAQ" * 5000, r"'/9j/4AAQ.*'... .40000 characters. looks like base64, which is not read here"),
        ("data:image/png;base64,iVBORw0KGgo=", "looks like base64"),
        ({"bytes": "iVBORw0KGgo/" * 99}, "looks like base64"),
        ("https://example.org/a.png", "is a URL, and nothing is downloaded"),
        ("x" * 300 + ".png", "the path 'x*'... .304 characters. cannot be used: File name too long"),
        ("~nobody-of-that-name/a.png", "the path .* cannot be used"),
        ("a\0.png", "cannot be used"),
        (["a.png", "a.png"], "holds 2 media where one is wanted"),
    ],
)
def test_rows_without_a_medium_are_named(tmp_path, value, message):
    (tmp_path / "a.png").write_bytes(png())
    with pytest.raises(DataError, match=f"p.jsonl row 1: field 'image'.*({message})") as caught:
        load(jsonl(tmp_path / "p.jsonl", {"prompt": "a", "image": value}))
    assert len(str(caught.value)) < 600, "an error fits on a screen, whatever the value holds"
    optional = {"image": MediaConfig(modality="image", optional=True)}
    if "missing" in message:
        assert not load(jsonl(tmp_path / "p.jsonl", {"prompt": "a", "image": value}), optional)[0].media
        assert not load(jsonl(tmp_path / "p.jsonl", {"prompt": "a"}), optional)[0].media


@pytest.mark.parametrize("statistics", [True, False])
def test_empty_cells_are_named_at_once_and_broken_ones_when_they_are_looked_at(tmp_path, statistics):
    def load_cells(*contents: bytes | None):
        rows = [{"prompt": str(i), "image": {"bytes": content, "path": None}} for i, content in enumerate(contents)]
        pq.write_table(pa.Table.from_pylist(rows), tmp_path / "p.parquet", write_statistics=statistics)
        return load(tmp_path / "p.parquet")

    for missing in (None, b"") if not statistics else (None,):
        with pytest.raises(DataError, match="p.parquet row 2: field 'image': the medium is missing"):
            load_cells(png(), missing)
    found = load_cells(png(), b"junk", b"" if statistics else png())
    with pytest.raises(DataError, match="p.parquet row 2: field 'image': no picture that can be decoded"):
        found[1].media["image"]
    assert "p.parquet row 2" in repr(found[1].media)
    if statistics:
        with pytest.raises(DataError, match="p.parquet row 3: field 'image': the medium is missing"):
            found[2].media["image"]


def test_files_that_are_known_to_be_filled_are_not_read_in_advance(tmp_path, monkeypatch):
    path = parquet(tmp_path / "p.parquet", rows_of_bytes(3))
    monkeypatch.setattr(cells._batches, "get", None)
    assert len(load(path)) == 3


def test_lists_are_walked_by_position(tmp_path):
    for name, seed in (("a", 1), ("b", 2)):
        (tmp_path / f"{name}.png").write_bytes(png(seed))
    media = {
        "first": MediaConfig("image", field="images.0"),
        "second": MediaConfig("image", field="images.1", optional=True),
    }
    path = jsonl(
        tmp_path / "p.jsonl", {"prompt": "x", "images": ["a.png", "b.png"]}, {"prompt": "y", "images": ["b.png"]}
    )
    two, one = load(path, media)
    assert [torch.equal(two.media[name].data, picture(seed).data) for name, seed in (("first", 1), ("second", 2))] == [
        True
    ] * 2
    assert list(one.media) == ["first"]


def test_sound_in_numbers_must_have_a_rate(tmp_path):
    media = {"sound": MediaConfig("audio")}
    good = {"prompt": "a", "sound": {"array": [0.0, 0.5, -0.5], "sampling_rate": 8000}}
    (row,) = load(jsonl(tmp_path / "p.jsonl", good), media)
    assert (row.media["sound"].data.tolist(), row.media["sound"].sample_rate) == ([[0.0, 0.5, -0.5]], 8000)
    (bad,) = load(jsonl(tmp_path / "p.jsonl", {"prompt": "a", "sound": {"array": [0.0]}}), media)
    with pytest.raises(DataError, match="p.jsonl row 1: field 'sound': sound without a sample rate"):
        bad.media["sound"]
    for array in ([[1, 2], [3]], [[1, 2], 3]):
        with pytest.raises(DataError, match="row 1: field 'sound': 'array' holds channels of different lengths"):
            load(jsonl(tmp_path / "p.jsonl", {"prompt": "a", "sound": {"array": array, "sampling_rate": 1}}), media)
    with pytest.raises(DataError, match="'array' holds something other than numbers"):
        load(jsonl(tmp_path / "p.jsonl", {"prompt": "a", "sound": {"array": ["x"], "sampling_rate": 1}}), media)


def test_settings_of_data_media_reach_the_decoder(tmp_path):
    mp4(tmp_path)
    media = {
        "clip": MediaConfig("video", field="file", fps=5, max_frames=3, height=4, width=4),
        "sound": MediaConfig("audio", field="file", sample_rate=8000, max_seconds=0.5),
    }
    (row,) = load(jsonl(tmp_path / "p.jsonl", {"prompt": "a", "file": "clip.mp4"}), media)
    assert row.media["clip"].data.shape == (3, 3, 4, 4)
    assert row.media["sound"].data.shape == (1, 4000)
    assert list(row.media) == ["clip", "sound"], "the order in which the model is shown them"


def test_targets_are_cut_to_a_sample_of_the_rollout(tmp_path):
    mp4(tmp_path)
    path = jsonl(tmp_path / "p.jsonl", {"prompt": "a", "file": "clip.mp4"})
    (row,) = load(path, {}, video=["file"], audio=["file"])
    (target,) = row.targets
    assert (target["video"].data.shape, target["video"].fps) == ((3, 3, 16, 16), 5.0)
    assert target["audio"].data.shape == (1, 9600)  # 3 frames at 5 per second
    assert row.metadata == {}


def test_pairs_give_one_target_per_side(tmp_path):
    rows = [{"prompt": "a", "win": png(1), "lose": png(2), "win_score": 0.5}]
    (row,) = load(parquet(tmp_path / "p.parquet", rows), {}, image=["win", "lose"])
    assert [torch.equal(t["image"].data, picture(i + 1).data) for i, t in enumerate(row.targets)] == [True, True]
    assert row.metadata == {"win_score": 0.5}
    with pytest.raises(DataError, match="row 1: field 'worse' is missing"):
        load(parquet(tmp_path / "p.parquet", rows), {}, image=["win", "worse"])


def test_texts_can_be_targets_and_stay_metadata(tmp_path):
    row = {"prompt": "a", "chosen": {"role": "assistant", "content": "yes"}, "rejected": "no"}
    (found,) = load(jsonl(tmp_path / "p.jsonl", row), {}, text=["chosen", "rejected"])
    assert [target["text"].data for target in found.targets] == ["yes", "no"]
    assert found.metadata["rejected"] == "no"
    with pytest.raises(DataError, match="row 1: field 'rejected': the medium is missing"):
        load(jsonl(tmp_path / "p.jsonl", row | {"rejected": " "}), {}, text=["chosen", "rejected"])


def test_chats_with_media_need_settings_for_them(tmp_path):
    chat = [{"role": "user", "content": "<image>\nHow many?"}]
    rows = [{"prompt": chat, "images": [{"bytes": png(1)}], "reward_model": {"ground_truth": "3"}}]
    path = parquet(tmp_path / "p.parquet", rows)
    (row,) = load(path, {"image": MediaConfig("image", field="images.0")})
    assert (row.prompt, row.metadata) == ("How many?", {"ground_truth": "3"})
    assert torch.equal(row.media["image"].data, picture(1).data)
    with pytest.raises(DataError, match="row 1: the column 'images' holds input media, which data.media does not name"):
        load(path, {})
    middle = [{"prompt": [{"role": "user", "content": "Look: <image> How many?"}], "images": [{"bytes": png(1)}]}]
    with pytest.raises(DataError, match="row 1: field 'prompt' has '<image>' in the middle"):
        load(parquet(tmp_path / "p.parquet", middle), {"image": MediaConfig("image", field="images")})


def test_media_survive_a_change_of_process(tmp_path):
    wav(tmp_path)
    (row,) = load(jsonl(tmp_path / "p.jsonl", {"prompt": "a", "tone": "tone.wav"}), {"tone": MediaConfig("audio")})
    there = pickle.loads(pickle.dumps(row.media))  # noqa: S301 - our own bytes
    assert (there["tone"].data - tone().data).abs().max() < 1e-4


def test_a_file_that_changes_under_way_is_an_error(tmp_path):
    path = parquet(tmp_path / "gone.parquet", rows_of_bytes(3))
    rows = load(path)
    path.unlink()
    with pytest.raises(DataError, match="gone.parquet row 2: column 'image' cannot be read"):
        rows[1].media["image"]
