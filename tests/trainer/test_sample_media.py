"""Media of validation samples: files beside the rows that name them, and a report that plays them."""

from __future__ import annotations

import asyncio
import base64
import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from PIL import Image

from omni_portable.contracts.media import MediaArtifact
from omni_portable.data.decode import decode
from omni_portable.trainer.report import media as report_media
from omni_portable.trainer.report import write_report
from omni_portable.trainer.sample_files import write_sample
from omni_portable.trainer.validation import ValidationStage
from tests.support.media import fading, picture, tone
from tests.trainer.synthetic_run import write_run
from tests.trainer.test_report import parsed
from tests.trainer.trainer_fakes import FixedReward, make_reward, make_scored

FILM = {"video": fading(), "audio": tone()}
SPEECH = {"speech": tone(), "response": MediaArtifact("response", "text", "a <b>loud</b> tone", "str")}


class Fixed:
    """A rollout stage that returns samples with the given artifacts."""

    def __init__(self, artifacts: list[dict[str, MediaArtifact]]) -> None:
        self.trajectories = make_scored(len(artifacts))
        for trajectory, made in zip(self.trajectories, artifacts, strict=True):
            trajectory.artifacts = made

    async def run(self, requests: list) -> list:
        return self.trajectories


def validate(root: Path, artifacts: list[dict[str, MediaArtifact]], step: int = 0, images: int = 16) -> list[dict]:
    reward = make_reward([0.5] * len(artifacts))
    stage = ValidationStage(Fixed(artifacts), FixedReward(reward), [], root / "validation", images)  # type: ignore[arg-type]
    result = asyncio.run(stage.run(step))
    folder = root / "validation" / f"step_{step:06d}"
    assert (result.grid is not None) == (folder / "grid.png").is_file()
    return [json.loads(line) for line in (folder / "samples.jsonl").read_text().splitlines()]


def test_rows_name_the_files_of_their_media(tmp_path):
    rows = validate(tmp_path, [FILM, SPEECH, {"image": picture()}, FILM], images=3)
    folder = tmp_path / "validation" / "step_000000"
    assert rows[0]["media"] == {"audio": "media/0000.wav", "video": "media/0000.mp4"}
    assert (rows[1]["media"], rows[1]["texts"]) == ({"speech": "media/0001.wav"}, {"response": "a <b>loud</b> tone"})
    assert (rows[2]["image"], "media" in rows[2]) == ("images/0002.png", False)
    assert ("media" in rows[3], rows[3]["score"]) == (False, 0.5), "bounded: the score is kept, the film is not"
    found = decode(folder / "media" / "0000.mp4", "v", "video", "x")
    assert (found.data.shape, found.fps) == ((10, 3, 16, 16), 10.0)
    assert decode(folder / "media" / "0000.mp4", "s", "audio", "x").sample_rate == 16000
    assert decode(folder / "media" / "0001.wav", "s", "audio", "x").sample_rate == 16000


def test_a_film_stands_on_the_grid_with_its_middle_frame(tmp_path):
    files = write_sample(FILM, tmp_path, 0)
    assert files.picture is not None
    assert (files.picture.modality, files.picture.data.shape) == ("image", (3, 16, 16))  # type: ignore[union-attr]
    assert files.picture.data.float().mean() == 100  # type: ignore[union-attr]
    validate(tmp_path, [FILM])
    with Image.open(tmp_path / "validation" / "step_000000" / "grid.png") as grid:
        assert grid.width >= 96
    validate(tmp_path, [SPEECH], step=1)
    assert not (tmp_path / "validation" / "step_000001" / "grid.png").exists()


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """A run whose two validations made films and spoken answers."""
    folder = write_run(tmp_path / "run", finished=False)
    for old in sorted((folder / "validation").rglob("*"), reverse=True):
        old.rmdir() if old.is_dir() else old.unlink()
    for step in (0, 20):
        validate(folder, [FILM, SPEECH], step)
    return folder


def test_the_report_plays_films_and_sounds_and_lists_texts(run_dir):
    path = write_report(run_dir)
    text = path.read_text()
    assert (text.count("<video"), text.count("<audio"), text.count("<blockquote>")) == (2, 2, 2)
    urls = re.findall(r'src="data:(video/mp4|audio/wav);base64,([^"]+)"', text)
    folder = run_dir / "validation" / "step_000000" / "media"
    assert base64.b64decode(urls[0][1]) == (folder / "0000.mp4").read_bytes()
    assert base64.b64decode(urls[2][1]) == (folder / "0001.wav").read_bytes()
    page = parsed(path)
    assert "a <b>loud</b> tone" in page.text, "escaped"
    assert "Left: step 0. Right: step 20." in page.text
    assert all(reference.startswith(("data:", "#")) for reference in page.references)
    assert "no image" not in page.text


def test_what_is_too_large_for_the_page_is_linked_to(run_dir, monkeypatch, tmp_path):
    monkeypatch.setattr(report_media.Budget, "left", 10)
    monkeypatch.setattr(report_media.Budget.__init__, "__defaults__", (10,))
    text = write_report(run_dir).read_text()
    assert 'src="validation/step_000000/media/0000.mp4"' in text
    assert 'src="validation/step_000020/media/0001.wav"' in text
    elsewhere = write_report(run_dir, tmp_path / "other" / "page.html").read_text()
    assert "<video" not in elsewhere
    assert str(run_dir / "validation" / "step_000000" / "media" / "0000.mp4") in elsewhere


def test_files_that_are_gone_or_of_another_kind_are_shown_as_missing(run_dir):
    folder = run_dir / "validation" / "step_000000"
    (folder / "media" / "0000.mp4").unlink()
    rows = [json.loads(line) for line in (folder / "samples.jsonl").read_text().splitlines()]
    rows[1]["media"] = {"speech": "samples.jsonl"}
    (folder / "samples.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    page = parsed(write_report(run_dir))
    assert "no video of prompt 0" in page.text
    assert "no speech of prompt 0" in page.text
    for odd in ("x", [1], {"a": 3}, None):
        (folder / "samples.jsonl").write_text(
            "".join(json.dumps(row | {"media": odd, "texts": odd}) + "\n" for row in rows)
        )
        parsed(write_report(run_dir))


def test_long_texts_are_cut(run_dir):
    validate(run_dir, [{"response": MediaArtifact("response", "text", "word " * 2000, "str")}], step=30)
    page = parsed(write_report(run_dir))
    assert "(10000 characters)" in page.text
    assert len(page.text) < 20_000


GIVEN = {"first_frame": picture(3), "question": tone()}


@pytest.fixture
def conditioned_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run whose prompts brought a picture and a sound."""
    folder = write_run(tmp_path / "run", finished=False)
    shutil.rmtree(folder / "validation")
    real = Fixed.__init__

    def with_media(self: Fixed, artifacts: list[dict[str, MediaArtifact]]) -> None:
        real(self, artifacts)
        for trajectory in self.trajectories:
            trajectory.request = replace(trajectory.request, media=GIVEN)

    monkeypatch.setattr(Fixed, "__init__", with_media)
    for step in (0, 20):
        validate(folder, [{"image": picture()}, {"image": picture(1)}], step, images=1)
    return folder


def test_input_media_are_kept_beside_the_samples_that_are_shown(conditioned_run):
    folder = conditioned_run / "validation" / "step_000000"
    rows = [json.loads(line) for line in (folder / "samples.jsonl").read_text().splitlines()]
    assert rows[0]["inputs"] == {"first_frame": "inputs/0000-first_frame.png", "question": "inputs/0000-question.wav"}
    assert "inputs" not in rows[1], "bounded, as the samples are"
    assert torch.equal(decode(folder / rows[0]["inputs"]["first_frame"], "x", "image", "x").data, picture(3).data)
    assert sorted(path.name for path in (folder / "inputs").iterdir()) == ["0000-first_frame.png", "0000-question.wav"]


def test_the_report_shows_what_came_with_a_prompt_once(conditioned_run):
    text = write_report(conditioned_run).read_text()
    assert text.count('class="input"') == 2
    assert (text.count("first_frame given with"), text.count("question given with")) == (1, 1)
    assert text.count("<audio") == 1
    page = parsed(write_report(conditioned_run))
    assert all(reference.startswith(("data:", "#")) for reference in page.references)


def test_inputs_that_are_gone_or_damaged_are_shown_as_missing(conditioned_run):
    folder = conditioned_run / "validation" / "step_000000"
    (folder / "inputs" / "0000-first_frame.png").unlink()
    page = parsed(write_report(conditioned_run))
    assert "no first_frame given with prompt 0" in page.text
    rows = [json.loads(line) for line in (folder / "samples.jsonl").read_text().splitlines()]
    for odd in ("x", [1], {"a": 3}, None):
        lines = [json.dumps(row | {"inputs": odd}) + "\n" for row in rows]
        (folder / "samples.jsonl").write_text("".join(lines))
        parsed(write_report(conditioned_run))
