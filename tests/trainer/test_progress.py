"""What a person sees on a terminal, in a pipe, and with progress off."""

from __future__ import annotations

import re

import pytest

from omni_portable.trainer.progress import (
    PlainProgress,
    RichProgress,
    SilentProgress,
    make_progress,
    plain_kind,
    starting_line,
    summary_line,
)

METRICS = {
    "reward/mean": 0.4213,
    "validation/reward_mean": 0.5,
    "validation/reward_stderr": 0.0123,
    "timing_s/rollout": 1.26,
    "timing_s/update": 3.0,
    "timing_s/step": 9.0,
}


def test_a_line_says_step_reward_validation_times_and_what_is_left() -> None:
    line = summary_line(3, 20, METRICS, 125.0)
    assert line == "step 3/20 | reward 0.421 | validation 0.500 +- 0.012 | rollout 1.3s, update 3.0s | left 2:05"


def test_of_sets_that_are_scored_side_by_side_it_says_how_long_any_was() -> None:
    scored = {"timing_s/reward": 40.0, "role_s/reward/busy": 5.0, "timing_s/rollout": 3.0, "role_s/rollout/busy": 0.0}
    assert summary_line(3, 3, scored, 0.0) == "step 3/3 | reward 5.0s | left 0:00"


def test_what_is_not_there_is_left_out() -> None:
    assert summary_line(0, 5, {"validation/reward_mean": 1.0, "validation/reward_stderr": 0.0}, 0.0) == (
        "step 0/5 | validation 1.000 +- 0.000"
    )


def test_plain_prints_one_line_per_step(capsys: pytest.CaptureFixture[str]) -> None:
    progress = PlainProgress(total=4, done=2)
    progress.stage("step 3: rollout")
    progress.step(3, METRICS)
    progress.note("half way")
    progress.close()
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2
    assert lines[0].startswith("step 3/4 | reward 0.421")
    assert lines[1] == "half way"


def test_time_left_counts_from_where_the_run_resumed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = iter([100.0, 110.0, 120.0])
    monkeypatch.setattr("time.monotonic", lambda: next(now))
    progress = PlainProgress(total=20, done=10)  # and then a data plane is started, say
    progress.stage("step 11: rollout")
    progress.step(11, {})
    progress.step(12, {})
    assert [line.rpartition("| ")[2] for line in capsys.readouterr().out.splitlines()] == ["left 1:30", "left 1:20"]


def test_time_left_counts_no_validation_before_training(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = iter([100.0, 160.0, 170.0])
    monkeypatch.setattr("time.monotonic", lambda: next(now))
    progress = PlainProgress(total=3, done=0)
    for step, stage in enumerate(("validation", "rollout")):
        progress.stage(f"step {step}: {stage}")
        progress.step(step, {})
    assert capsys.readouterr().out.splitlines()[-1] == "step 1/3 | left 0:20"


def test_off_is_silent(capsys: pytest.CaptureFixture[str]) -> None:
    progress = make_progress("off", 4, 0)
    assert isinstance(progress, SilentProgress)
    progress.stage("x")
    progress.step(1, METRICS)
    progress.note("x")
    progress.close()
    assert capsys.readouterr().out == ""


def test_auto_draws_on_a_terminal_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: False)
    assert isinstance(make_progress("auto", 4, 0), PlainProgress)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    drawn = make_progress("auto", 4, 0)
    drawn.close()
    assert isinstance(drawn, RichProgress)


def test_rich_keeps_a_finished_line_per_step(capsys: pytest.CaptureFixture[str]) -> None:
    progress = make_progress("rich", 4, 0)
    progress.stage("step 1: rollout")
    progress.step(1, {"reward/mean": 0.25})
    progress.note("a [note] with brackets")
    progress.close()
    out = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", capsys.readouterr().out)
    assert "step 1/4 | reward 0.250" in out
    assert "a [note] with brackets" in out


def test_engines_that_start_are_named_off_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    assert starting_line("vllm_omni", "local", 1) == "starting rollout engine vllm_omni (launcher local) ..."
    assert starting_line("vllm", "ray", 3) == "starting rollout engine 3 x vllm (launcher ray) ..."
    monkeypatch.setattr("sys.stdout.isatty", lambda: False)
    assert [plain_kind(kind) for kind in ("auto", "plain", "rich", "off")] == [True, True, False, False]
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    assert [plain_kind(kind) for kind in ("auto", "plain", "rich", "off")] == [False, True, False, False]
