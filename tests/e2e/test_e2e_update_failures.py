"""Runs in one process whose rollout engine does not take some updates, or that are to go on in another mode."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from omni_portable.trainer import placing
from omni_portable.trainer.checkpoint import list_checkpoints
from tests.e2e import fragile
from tests.e2e.fragile import AGAIN, RUN, without_versions
from tests.e2e.rundirs import differences, equal_tensors, metrics


def test_updates_that_fail_once_change_no_number_and_others_end_a_run_that_can_go_on(
    train: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(placing, "HERE", fragile.HERE)
    still, run_dir = tmp_path / "still", tmp_path / "run"
    assert train(still, *RUN, "trainer.total_steps=3").code == 0

    fragile.prepare(run_dir, 1, 4, 5)
    given = (*RUN, "trainer.sync_attempts=2", "trainer.total_steps=3")
    outcome = train(run_dir, *given)
    assert outcome.code == 1, outcome.err
    assert "could not be written: no memory is left" in outcome.err
    assert "trainer.resume=auto" in outcome.err
    assert (run_dir / "log.txt").read_text().count(AGAIN) == 2
    assert fragile.unused(run_dir) == []
    assert [folder.name for folder in list_checkpoints(run_dir / "checkpoints")] == ["step_000001"]
    assert set(metrics(run_dir)) == {1}

    outcome = train(run_dir, *given)
    assert outcome.code == 0, outcome.err
    assert differences(without_versions(still), without_versions(run_dir)) == []
    assert equal_tensors(still / "export", run_dir / "export")

    checkpoint = f"trainer.resume={run_dir}/checkpoints/step_000003"
    outcome = train(run_dir, *RUN, "trainer.mode=separate_async", "dataplane.max_staleness=1", checkpoint)
    assert outcome.code == 1
    assert "trainer.mode: 'sync' then, 'separate_async' now" in outcome.err
    assert "dataplane.max_staleness: 0 then, 1 now" in outcome.err
    assert "start a new run in another trainer.run_dir" in outcome.err
    assert (run_dir / "export").is_dir()
