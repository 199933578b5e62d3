"""Validation: figures, files, and samples without a score."""

from __future__ import annotations

import asyncio
import json
import math
import statistics
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from omni_portable.contracts.errors import RewardError, RunDirectoryError
from omni_portable.reward.compose import ComposedReward
from omni_portable.trainer.validation import ValidationResult, ValidationStage, mean_and_stderr, strict
from tests.trainer.trainer_fakes import FixedReward, make_reward, make_scored


class FixedRollout:
    def __init__(self, count: int) -> None:
        self.trajectories = make_scored(count)

    async def run(self, requests: list) -> list:
        return self.trajectories


def validate(root: Path, reward: ComposedReward, *, images: int = 16, step: int = 3) -> ValidationResult:
    stage = ValidationStage(FixedRollout(len(reward.total)), FixedReward(reward), [], root, images)  # type: ignore[arg-type]
    return asyncio.run(stage.run(step))


def read_rows(root: Path) -> list[dict]:
    def refuse(name: str) -> None:
        raise AssertionError(f"samples.jsonl holds {name}, which is no JSON")

    lines = (root / "step_000003" / "samples.jsonl").read_text().splitlines()
    return [json.loads(line, parse_constant=refuse) for line in lines]


@given(st.lists(st.floats(-1e3, 1e3), min_size=2, max_size=30))
def test_standard_error_is_that_of_the_mean(values: list[float]) -> None:
    mean, stderr = mean_and_stderr(values)
    assert mean == pytest.approx(statistics.fmean(values), abs=1e-9)
    assert stderr == pytest.approx(statistics.stdev(values) / math.sqrt(len(values)), abs=1e-9)


def test_a_single_value_has_no_error() -> None:
    assert mean_and_stderr([0.25]) == (0.25, 0.0)


def test_metrics_and_files(tmp_path: Path) -> None:
    result = validate(tmp_path, make_reward([0.0, 1.0, 1.0, 0.0]), images=3)
    assert result.metrics["validation/reward_mean"] == 0.5
    assert result.metrics["validation/reward_stderr"] == pytest.approx(math.sqrt(1 / 3) / 2)
    assert result.metrics["validation/count"] == 4.0
    assert result.metrics["validation/s/score"] == 0.5
    assert result.scores == (0.0, 1.0, 1.0, 0.0)
    folder = tmp_path / "step_000003"
    assert sorted(p.name for p in (folder / "images").iterdir()) == ["0000.png", "0001.png", "0002.png"]
    with Image.open(folder / "images" / "0002.png") as image:
        assert image.size == (8, 8)
        assert image.getpixel((0, 0)) == (2, 2, 2)
    assert result.grid == folder / "grid.png"
    assert result.grid.is_file()


def test_rows_name_prompt_sample_score_and_picture(tmp_path: Path) -> None:
    validate(tmp_path, make_reward([0.0, 1.0, 0.5, 0.25]), images=1)
    rows = read_rows(tmp_path)
    assert rows[0] == {
        "index": 0,
        "prompt_id": "p0",
        "prompt": "prompt 0",
        "sample_index": 0,
        "score": 0.0,
        "components": {"s/score": 0.0},
        "details": {"s": {"text": "seen 0"}},
        "image": "images/0000.png",
    }
    assert [(r["prompt_id"], r["sample_index"], r["score"], r["image"]) for r in rows[1:]] == [
        ("p0", 1, 1.0, None),
        ("p1", 0, 0.5, None),
        ("p1", 1, 0.25, None),
    ]


def test_a_sample_without_score_leaves_the_figures_and_is_null_in_the_file(tmp_path: Path) -> None:
    result = validate(tmp_path, make_reward([0.0, 1.0, 7.0, 1.0], failed=["r2"]))
    assert result.metrics["validation/count"] == 3.0
    assert result.metrics["validation/reward_mean"] == pytest.approx(2 / 3)
    assert result.metrics["validation/s/score"] == pytest.approx(2 / 3)
    assert result.scores == (0.0, 1.0, 1.0)
    row = read_rows(tmp_path)[2]
    assert row["score"] is None
    assert row["components"] == {"s/score": None}
    assert row["image"] == "images/0002.png", "the picture is worth looking at"


def test_no_sample_left_is_an_error_that_says_why(tmp_path: Path) -> None:
    with pytest.raises(RewardError, match="step 3: none of the 2 samples.*'r0': no answer for r0"):
        validate(tmp_path, make_reward([0.0, 1.0], failed=["r0", "r1"]))
    assert not list(tmp_path.iterdir())


def test_strict_keeps_everything_else() -> None:
    value = {"a": [1.0, math.inf, (math.nan, "x")], 3: {"b": None, "c": True, "d": 2}}
    assert strict(value) == {"a": [1.0, None, [None, "x"]], "3": {"b": None, "c": True, "d": 2}}


def test_a_file_in_the_way_is_named(tmp_path: Path) -> None:
    (tmp_path / "step_000003").write_text("x")
    with pytest.raises(RunDirectoryError, match="cannot write.*step_000003"):
        validate(tmp_path, make_reward([0.0, 1.0]))
