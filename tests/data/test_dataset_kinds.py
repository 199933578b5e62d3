"""Published rows of every kind become rows that recipes read; every mistake is named by file, row and field."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from omni_portable.contracts.errors import ConfigError, DataError
from omni_portable.data.checking import check_file
from omni_portable.data.converting import Conversion, convert_files
from omni_portable.data.kinds import KINDS, find_kind
from omni_portable.data.kinds.questions import BOXED, CHOICE, NUMBER, options_of
from omni_portable.data.raw import read_raw
from tests.support.media import mp4, png, wav

Convert = Callable[..., list[dict[str, Any]]]
JUDGED = (
    "Compare. ### Context\nAudio file: /data/audio/tone.wav\nQuestion: What sounds?\nCandidate A: a\nbell\n"
    "Candidate B: dog"
)


def write(path: Path, rows: Sequence[Any]) -> Path:
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(list(rows)), path)
    elif path.suffix == ".json":
        path.write_text(json.dumps(list(rows)))
    else:
        path.write_text("".join(row if isinstance(row, str) else json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two pictures of one size, one of another, a tone and a clip."""
    for name, content in (("a.png", png(1)), ("b.png", png(2)), ("large.png", png(3, 16, 24)), ("junk.png", b"junk")):
        (tmp_path / name).write_bytes(content)
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "inside.png").write_bytes(png(4))
    wav(tmp_path)
    mp4(tmp_path)
    return tmp_path


@pytest.fixture
def convert(folder: Path) -> Convert:
    """Converts rows and reads the checked result; keywords go to `convert_files`."""

    def run(kind: str, *rows: Any, source: str = "in.jsonl", **options: Any) -> list[dict[str, Any]]:
        write(folder / source, rows)
        run.result = convert_files(
            find_kind(kind), [folder / source], folder / "out.parquet", overwrite=True, **options
        )  # type: ignore[attr-defined]
        assert check_file(folder / "out.parquet", find_kind(kind)) == run.result.written  # type: ignore[attr-defined]
        return [row for _, row in read_raw(folder / "out.parquet")]

    return run


def test_ocr_prompts(convert):
    rows = convert("ocr-prompts", 'a sign "OPEN" and "NOW"\n', 'the text "R7"\n', source="in.txt")
    assert [row["ground_truth"] for row in rows] == ["OPEN NOW", "R7"]
    assert convert("ocr-prompts", {"text": "a sign", "ground_truth": 7}) == [{"prompt": "a sign", "ground_truth": "7"}]
    with pytest.raises(DataError, match="in.jsonl row 2: field 'prompt' has no text between double quotes"):
        convert("ocr-prompts", {"text": '"a"'}, {"text": "a"})


def test_pickscore_prompts_are_long_and_different(convert):
    long = "a very  red\thouse on a hill"
    rows = convert(
        "pickscore-prompts", {"caption": long}, {"caption": "a house"}, {"caption": "a very red house on a hill"}
    )
    assert rows == [{"prompt": "a very red house on a hill"}]
    assert convert.result == Conversion(1, {"too short": 1, "duplicate": 1}, filled={"prompt": 1})


def test_image_edit_looks_in_the_published_folder_too(convert):
    rows = convert(
        "image-edit", {"prompt": "make it red", "image": "inside.png"}, {"instruction": "x", "images": ["a.png"]}
    )
    assert [(row["prompt"], row["image"]["bytes"]) for row in rows] == [("make it red", png(4)), ("x", png(1))]
    with pytest.raises(DataError, match="row 1: field 'image': there is no file"):
        convert("image-edit", {"prompt": "x", "image": "none.png"})
    with pytest.raises(DataError, match="row 1: field 'image' .*junk.png.: no picture that can be decoded"):
        convert("image-edit", {"prompt": "x", "image": "junk.png"})
    with pytest.raises(DataError, match="row 1: field 'image or images' is missing"):
        convert("image-edit", {"prompt": "x"})


@pytest.mark.parametrize("root", [".", "deep/er"])
def test_sources_and_media_roots_given_by_relative_paths(tmp_path, monkeypatch, root):
    """Nothing of a relative path is joined twice: the published folder, the source's own, and --media-root."""
    monkeypatch.chdir(tmp_path)
    folder, media = Path(root), Path(root, "media")
    for name in ("images", "media"):
        Path(root, name).mkdir(parents=True)
    for place in ("images/inside.png", "beside.png", "media/far.png"):
        (folder / place).write_bytes(png(4))
    edits = [{"prompt": "x", "image": "inside.png"}, {"prompt": "y", "image": "beside.png"}]
    frames = [{"prompt": "x", "images": ["beside.png"]}, {"prompt": "y", "images": ["/data/far.png", "far.png"]}]
    for kind, rows in (("image-edit", edits), ("fl2va", frames)):
        source = write(folder / "in.jsonl", rows)
        for out in (folder / "out.jsonl", Path("out.parquet")):
            assert convert_files(find_kind(kind), [source], out, media_root=media, overwrite=True).written == 2
            assert check_file(out, find_kind(kind)) == 2
    rows = [write(source, [{"prompt": "x", "image": "none.png"}])]
    with pytest.raises(DataError, match=f"there is no file {folder / 'none.png'}\n"):
        convert_files(find_kind("image-edit"), rows, out, overwrite=True)


def test_t2va(convert):
    assert convert("t2va", {"caption": "a storm"}, {"text": "a harp"}) == [{"prompt": "a storm"}, {"prompt": "a harp"}]
    with pytest.raises(DataError, match="row 1: field 'prompt or text or caption' is missing"):
        convert("t2va", {"title": "a storm"})


def test_fl2va_by_number_and_by_mode(convert):
    rows = convert(
        "fl2va",
        {"prompt": "x", "images": ["a.png"]},
        {"prompt": "x", "images": ["a.png", "b.png"]},
        {"prompt": "x", "images": ["a.png"], "frame_mode": "last"},
    )
    assert [row["frame_mode"] for row in rows] == ["first", "first_last", "last"]
    given = [[name for name in ("first_frame", "last_frame") if row[name]] for row in rows]
    assert given == [["first_frame"], ["first_frame", "last_frame"], ["last_frame"]]
    again = convert("fl2va", *rows, source="again.parquet")
    assert [row["frame_mode"] for row in again] == [row["frame_mode"] for row in rows]
    assert again[2]["last_frame"]["bytes"] == png(1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"images": []}, "holds 0 condition frames"),
        ({"images": ["a.png", "b.png", "a.png"]}, "holds 3 condition frames"),
        (
            {"images": ["a.png"], "frame_mode": "first_last"},
            "holds 1 condition frames, but frame_mode 'first_last' takes 2",
        ),
        (
            {"images": ["a.png", "b.png"], "frame_mode": "first"},
            "holds 2 condition frames, but frame_mode 'first' takes 1",
        ),
        ({"images": ["a.png"], "frame_mode": "middle"}, "'frame_mode' is 'middle'"),
        ({"images": ["a.png", "large.png"]}, "different sizes"),
    ],
)
def test_a_wrong_number_of_condition_frames(convert, change, message):
    with pytest.raises(DataError, match=f"in.jsonl row 2: .*{message}"):
        convert("fl2va", {"prompt": "x", "images": ["a.png"]}, {"prompt": "x"} | change)


def test_mmk12(convert):
    question = "How long is it?\nA. 5\nB、6 cm\n"
    rows = [
        {"id": "1", "question": question, "answer": "B", "subject": "math", "image": {"bytes": png(5), "path": None}}
    ]
    (row,) = convert("mmk12", *rows, source="in.parquet")
    assert row["prompt"] == f"{BOXED}\n\n{question.strip()}"
    assert (row["ground_truth"], row["options"], row["image"]["bytes"]) == ("B", ["A. 5", "B. 6 cm"], png(5))
    for change, message in (
        ({"answer": ""}, "'answer or ground_truth' is missing"),
        ({"image": {"bytes": b"x"}}, "no picture"),
    ):
        with pytest.raises(DataError, match=f"in.parquet row 1: field .*{message}"):
            convert("mmk12", rows[0] | change, source="in.parquet")


def test_placeholders_of_media(convert):
    """Leading ones would stand after the instruction; those amid a question keep their places."""
    row = {"answer": "B", "image": {"bytes": png(5), "path": None}}
    leading = row | {"question": "<image>\nHow long is it?"}
    amid = row | {"question": "In <image>, how long is it?"}
    first, second = convert("mmk12", leading, amid, source="in.parquet")
    assert first["prompt"] == f"{BOXED}\n\nHow long is it?"
    assert second["prompt"] == f"{BOXED}\n\nIn <image>, how long is it?"
    for question in ("In <image> and <image>, how long?", "<image> Hear <audio>."):
        with pytest.raises(DataError, match="row 1: field 'question' marks .* but the row has \\['image'\\]"):
            convert("mmk12", row | {"question": question}, source="in.parquet")
    (edit,) = convert("image-edit", {"prompt": "<image> Make it red.", "image": "a.png"})
    assert edit["prompt"] == "Make it red."
    with pytest.raises(DataError, match="row 1: field 'prompt' has '<image>' in the middle"):
        convert("image-edit", {"prompt": "Make <image> red.", "image": "a.png"})


def test_options_that_stand_on_lines():
    assert options_of("x\nA. 1\n b) 2") == ["A. 1"]
    assert options_of("A. 1\nA. 2") == []
    assert options_of("no options: A is B") == []


AVQA = {
    "problem": "What is heard?",
    "data_type": "image_audio",
    "options": ["A. a bell", "B. a dog"],
    "solution": "<answer>b</answer>",
    "path": {"image": "a.png", "audio": "tone.wav"},
}


def test_avqa(convert, folder):
    (row,) = convert("avqa", AVQA, AVQA | {"data_type": "video"}, source="in.json")
    assert row["prompt"] == f"{CHOICE}\n\nWhat is heard?\nOptions:\nA. a bell\nB. a dog"
    assert (row["ground_truth"], row["options"]) == ("B", ["A. a bell", "B. a dog"])
    assert row["audio"]["bytes"] == (folder / "tone.wav").read_bytes()
    assert convert.result.left_out == {"video question": 1}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"solution": "<answer>C</answer>"}, "field 'solution' is '<answer>C</answer>'"),
        ({"options": ["A. x", "y"]}, "field 'options' holds"),
        ({"options": ["A. x", "A. y"]}, "field 'options' holds"),
        ({"path": {"image": "a.png"}}, "field 'path.audio or audio or audios' is missing"),
        ({"path": {"image": "a.png", "audio": "a.png"}}, "field 'audio' .*(holds no sound|can be decoded)"),
        ({"problem": " "}, "field 'problem or question' is missing"),
    ],
)
def test_avqa_that_cannot_be_used(convert, change, message):
    with pytest.raises(DataError, match=f"in.json row 1: {message}"):
        convert("avqa", AVQA | change, source="in.json")


def test_preference_images(convert):
    rows = convert(
        "preference-images",
        {"prompt": "x", "img_win": "a.png", "img_lose": "b.png"},
        {"caption": "y", "chosen": "b.png", "rejected": "a.png", "win_score": 3, "lose_score": 0.5},
    )
    assert [(row["win_score"], row["lose_score"], row["img_win"]["bytes"]) for row in rows] == [
        (1, 0, png(1)),
        (3, 0.5, png(2)),
    ]
    labelled = {"caption": "z", "jpg_0": png(1), "jpg_1": png(2)}
    rows = convert("preference-images", *(labelled | {"label_0": v} for v in (0.0, 0.5, 1.0)), source="in.parquet")
    assert [row["img_win"]["bytes"] for row in rows] == [png(2), png(1)]
    assert convert.result.left_out == {"tie": 1}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"img_lose": "a.png"}, "img_win and img_lose are the same picture"),
        ({"img_lose": None}, "field 'img_lose or rejected' is missing"),
        (
            {"img_lose": "large.png"},
            r"the sides of the pair have different sizes: img_win \(8, 12\), img_lose \(16, 24\)",
        ),
        ({"win_score": 0.0}, "win_score 0 is not above lose_score 0"),
        ({"win_score": "high"}, "field 'win_score' holds 'high', which is no number"),
    ],
)
def test_pairs_that_prefer_nothing(convert, change, message):
    with pytest.raises(DataError, match=f"in.jsonl row 1: {message}"):
        convert("preference-images", {"prompt": "x", "img_win": "a.png", "img_lose": "b.png"} | change)


def test_equal_pictures_in_different_files_are_found_by_the_check(folder):
    rows = [{"prompt": "x", "img_win": {"bytes": png(1), "path": "1"}, "img_lose": {"bytes": png(1), "path": "2"}}]
    with pytest.raises(DataError, match="p.parquet row 1: .*the same picture"):
        check_file(write(folder / "p.parquet", rows), find_kind("preference-images"))


def test_preference_multimodal_in_both_forms(convert, folder):
    pair = {
        "prompt": [{"role": "user", "content": "<video>What happens?"}],
        "videos": ["clip.mp4"],
        "rejected": "nothing",
    }
    (row,) = convert("preference-multimodal", pair | {"chosen": {"role": "assistant", "content": "it brightens"}})
    assert (row["prompt"], row["chosen"], row["rejected"]) == ("What happens?", "it brightens", "nothing")
    assert row["video"]["bytes"] == (folder / "clip.mp4").read_bytes()
    assert row["image"] is row["audio"] is None
    verdict = {"score_A": 4, "score_B": 8, "better": "B"}
    judged = {
        "audios": ["/data/tone.wav"],
        "messages": [{"role": "user", "content": JUDGED}],
        "solution": json.dumps(verdict),
    }
    tie = judged | {"solution": json.dumps(verdict | {"better": "equal"})}
    (row,) = convert("preference-multimodal", judged, tie, media_root=folder)
    assert [row[name] for name in ("prompt", "chosen", "rejected", "win_score")] == [
        "What sounds?",
        "dog",
        "a\nbell",
        8,
    ]
    assert convert.result.left_out == {"tie": 1}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rejected": "yes"}, "chosen and rejected are the same answer"),
        ({"rejected": None}, "field 'rejected' is missing"),
        ({"images": []}, "field 'images' is missing or empty"),
        ({"solution": "x"}, "field 'solution' is no verdict"),
        (
            {"solution": '{"better": "A", "score_A": 2, "score_B": 1}', "messages": "x"},
            "field 'messages' does not name",
        ),
    ],
)
def test_answers_that_prefer_nothing(convert, change, message):
    with pytest.raises(DataError, match=f"in.jsonl row 1: {message}"):
        convert(
            "preference-multimodal", {"prompt": "x", "images": ["a.png"], "chosen": "yes", "rejected": "no"} | change
        )


def test_gsm8k(convert):
    (row,) = convert("gsm8k", {"question": "2 x 600?", "answer": "first ... #### 1,200"})
    assert row == {"prompt": f"2 x 600?\n{NUMBER}", "ground_truth": "1200"}
    with pytest.raises(DataError, match="row 1: field 'answer' ends with 'many', which is no number"):
        convert("gsm8k", {"question": "x", "answer": "#### many"})


def test_broken_rows_can_be_left_out_and_counted(convert):
    good = {"prompt": "x", "image": "a.png"}
    rows = convert("image-edit", good, {"prompt": "y"}, good, {"prompt": "z", "image": "junk.png"}, skip_bad=True)
    assert len(rows) == 2
    assert convert.result.left_out == {"broken": 2}
    assert "in.jsonl row 2" in convert.result.first_problem


def test_nothing_is_written_where_a_row_is_broken_or_none_is_left(convert, folder):
    for rows, options in (
        ([{"prompt": "x", "image": "a.png"}, {"prompt": "y"}], {}),
        ([{"prompt": "y"}], {"skip_bad": True}),
    ):
        with pytest.raises(DataError):
            convert("image-edit", *rows, **options)
        assert not list(folder.glob("*out*"))


def test_paths_instead_of_bytes(folder):
    source = write(folder / "in.jsonl", [{"prompt": "x", "image": "a.png"}])
    (folder / "sub").mkdir()
    for out, expected in (("sub/o.jsonl", str(folder / "a.png")), ("o.jsonl", "a.png")):
        convert_files(find_kind("image-edit"), [source], folder / out)
        assert json.loads((folder / out).read_text())["image"] == expected
        assert check_file(folder / out, find_kind("image-edit")) == 1
    convert_files(find_kind("image-edit"), [source], folder / "o.parquet", keep_paths=True)
    assert pq.read_table(folder / "o.parquet").to_pylist()[0]["image"] == {"bytes": None, "path": str(folder / "a.png")}
    inline = write(folder / "in.parquet", [{"prompt": "x", "image": {"bytes": png()}}])
    with pytest.raises(DataError, match="column 'image' holds bytes, which a .jsonl file cannot"):
        convert_files(find_kind("image-edit"), [inline], folder / "p.jsonl")
    with pytest.raises(DataError, match="ends neither in"):
        convert_files(find_kind("image-edit"), [source], folder / "o.csv")


def test_converted_files_have_small_row_groups(folder):
    lines = write(folder / "in.txt", [f'the text "{i}"\n' for i in range(100)])
    convert_files(find_kind("ocr-prompts"), [lines, lines], folder / "o.parquet")
    metadata = pq.ParquetFile(folder / "o.parquet").metadata
    assert (metadata.num_rows, max(metadata.row_group(i).num_rows for i in range(metadata.num_row_groups))) == (200, 32)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("x.csv", "a", "unknown ending '.csv'"),
        ("x.json", "{}", "not a list of rows"),
        ("x.json", "[1]", "row 1 is a JSON int"),
        ("x.json", "[", "is no JSON"),
        ("x.jsonl", "[]", "row 1 is a JSON list"),
        ("x.parquet", "no", "cannot be read as parquet"),
        ("none.txt", None, "does not exist"),
    ],
)
def test_sources_that_cannot_be_read(tmp_path, name, text, message):
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises(DataError, match=f"{name}.*{message}"):
        list(read_raw(tmp_path / name))


def test_columns_of_another_type_are_named(folder):
    path = write(folder / "p.jsonl", [{"prompt": "x", "ground_truth": 7}])
    with pytest.raises(DataError, match="p.jsonl row 1: field 'ground_truth' holds 7, which is no text"):
        check_file(path, find_kind("gsm8k"))
    with pytest.raises(DataError, match="p.jsonl row 1: field 'image' is missing or empty"):
        check_file(path, find_kind("image-edit"))
    with pytest.raises(DataError, match="holds no rows"):
        check_file(write(folder / "empty.jsonl", []), find_kind("gsm8k"))


def test_unknown_kinds_are_answered_with_the_known_ones():
    with pytest.raises(ConfigError, match="did you mean 'mmk12'"):
        find_kind("mmk")
    assert all(kind.name == name and kind.summary and kind.takes for name, kind in KINDS.items())
