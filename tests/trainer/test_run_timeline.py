"""The file of the timeline: rows are added, and a continuation keeps those before it whatever happens."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from omni_portable.trainer.report.read import read_run
from omni_portable.trainer.timeline import FILE, append_timeline, read_rows, read_timeline, rewind_timeline
from omni_portable.trainer.timing import Span


def written(run_dir: Path) -> None:
    for step in (1, 2, 3):
        append_timeline(run_dir, step, [Span("rollout", step, step + 0.5), Span("update", step + 0.5, step + 1)])


def test_rows_after_the_step_go(tmp_path: Path) -> None:
    written(tmp_path)
    with (tmp_path / FILE).open("a") as file:
        file.write('{"step": 3, "sta')
    rewind_timeline(tmp_path, 2)
    assert [step for step, _ in read_timeline(tmp_path)] == [1, 1, 2, 2]
    append_timeline(tmp_path, 3, [Span("rollout", 0, 1)])
    assert (tmp_path / FILE).read_text().count("\n") == 5


def test_a_kill_while_rows_are_removed_loses_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(tmp_path)
    before = (tmp_path / FILE).read_bytes()

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    for moment in ("fsync", "replace"):
        with monkeypatch.context() as patched:
            patched.setattr(os, moment, killed)
            with pytest.raises(KeyboardInterrupt):
                rewind_timeline(tmp_path, 1)
        assert (tmp_path / FILE).read_bytes() == before
    rewind_timeline(tmp_path, 1)
    assert [step for step, _ in read_timeline(tmp_path)] == [1, 1]


def test_a_run_without_a_timeline_gets_none(tmp_path: Path) -> None:
    rewind_timeline(tmp_path, 0)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "line",
    [
        '{"step": Infinity, "stage": "update", "start": 0, "end": 1}',
        "[" * 100_000,
        "[1, 2]",
        "\x00\ufffd",
        '{"step": 1, "stage": "update", "start": 0, "end": NaN}',
        '{"step": 1, "stage": "update", "start": 5, "end": 1}',
        '{"step": 1, "stage": "update", "start": -Infinity, "end": 1}',
        '{"step": 1, "stage": "update", "start": null, "end": 1}',
    ],
)
def test_damaged_lines_stop_neither_a_report_nor_a_continuation(tmp_path: Path, line: str) -> None:
    written(tmp_path)
    path = tmp_path / FILE
    path.write_text(line + "\n" + path.read_text() + '{"step": 3, "sta', encoding="utf-8")
    rows, damaged = read_rows(tmp_path)
    assert (len(rows), damaged) == (6, 1)
    (tmp_path / "config.yaml").write_text("recipe: mine\n")
    assert "1 line of timeline.jsonl" in " ".join(read_run(tmp_path).notes)
    rewind_timeline(tmp_path, 2)
    assert [step for step, _ in read_timeline(tmp_path)] == [1, 1, 2, 2]
