"""The summary of a run: before and after on the same held-out samples."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from omni_portable.contracts.errors import RunDirectoryError
from omni_portable.trainer.summary import summarise


def write(run_dir: Path, step: int, scores: list[float | None]) -> None:
    folder = run_dir / "validation" / f"step_{step:06d}"
    folder.mkdir(parents=True)
    rows = [{"prompt_id": f"p{i}", "sample_index": 0, "score": score} for i, score in enumerate(scores)]
    (folder / "samples.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_first_and_last_are_compared(tmp_path: Path) -> None:
    write(tmp_path, 0, [0.0, 0.2, 0.4])
    write(tmp_path, 10, [9.0, 9.0, 9.0])
    write(tmp_path, 20, [0.5, 0.7, 0.9])
    summary = summarise(tmp_path)
    assert summary["validations"] == ["step_000000", "step_000010", "step_000020"]
    assert (summary["before"], summary["after"], summary["samples"]) == (pytest.approx(0.2), pytest.approx(0.7), 3)
    assert summary["rise"] == pytest.approx(0.5)
    assert summary["before_stderr"] == pytest.approx(0.2 / math.sqrt(3))
    assert summary["rise_stderr"] == pytest.approx(math.hypot(0.2, 0.2) / math.sqrt(3))
    assert summary["paired_rise_stderr"] == pytest.approx(0.0, abs=1e-12), "every sample rose by the same"


def test_pairs_are_samples_with_a_score_in_both(tmp_path: Path) -> None:
    write(tmp_path, 0, [0.0, 0.0, 0.0, None])
    write(tmp_path, 5, [1.0, None, 3.0, 4.0])
    summary = summarise(tmp_path)
    assert summary["before"] == 0.0
    assert summary["after"] == pytest.approx(8 / 3)
    assert summary["samples"] == 3
    assert summary["paired_rise_stderr"] == pytest.approx(1.0), "of 1 and 3"


def test_one_validation_gives_no_figures(tmp_path: Path) -> None:
    write(tmp_path, 0, [0.0])
    assert summarise(tmp_path) == {"validations": ["step_000000"]}


def test_no_validation_gives_no_figures(tmp_path: Path) -> None:
    (tmp_path / "validation" / "step_000000" / "images").mkdir(parents=True)
    assert summarise(tmp_path) == {"validations": []}


@pytest.mark.parametrize(
    "content", ["\udcff", "[]", "{}", "[" * 100_000, '{"prompt_id": [], "sample_index": 0, "score": 1}']
)
def test_damaged_samples_are_named(tmp_path: Path, content: str) -> None:
    write(tmp_path, 0, [0.0])
    write(tmp_path, 5, [1.0])
    path = tmp_path / "validation" / "step_000005" / "samples.jsonl"
    path.write_text(content, errors="surrogateescape")
    with pytest.raises(RunDirectoryError, match="step_000005/samples.jsonl is damaged"):
        summarise(tmp_path)


def test_other_folders_do_not_count_and_steps_are_numbers(tmp_path: Path) -> None:
    write(tmp_path, 999_999, [0.0])
    write(tmp_path, 1_000_000, [1.0])
    (tmp_path / "validation" / "mine").mkdir()
    (tmp_path / "validation" / "mine" / "samples.jsonl").write_text("x")
    assert summarise(tmp_path)["rise"] == 1.0
