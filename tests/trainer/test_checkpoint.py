"""Checkpoints are whole or absent, and damage is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from omni_portable.contracts.errors import CheckpointError
from omni_portable.trainer.checkpoint import (
    TrainerState,
    list_checkpoints,
    prune_checkpoints,
    read_checkpoint,
    resolve_resume,
    save_checkpoint,
)


def state(step: int) -> TrainerState:
    return TrainerState(step=step, policy_version=step + 1, submissions=step * 4, fingerprint="abc")


def write_parts(folder: Path) -> None:
    (folder / "actor").mkdir()
    (folder / "actor" / "weights.safetensors").write_bytes(bytes(range(200)))


def test_round_trip(tmp_path: Path) -> None:
    folder = save_checkpoint(tmp_path, state(3), write_parts)
    assert folder.name == "step_000003"
    assert read_checkpoint(folder) == state(3)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda f: (f / "actor/weights.safetensors").write_bytes(bytes(range(100))), "weights.safetensors is not what"),
        (lambda f: (f / "actor/weights.safetensors").unlink(), "lacks the file actor/weights.safetensors"),
        (lambda f: (f / "manifest.json").write_text("{"), "manifest.json cannot be read"),
        (lambda f: (f / "manifest.json").unlink(), "manifest.json cannot be read"),
        (lambda f: (f / "trainer.json").write_text("{}"), "trainer.json is not what"),
    ],
)
def test_damage_is_named_and_other_checkpoints_are_offered(tmp_path: Path, damage, message: str) -> None:
    save_checkpoint(tmp_path, state(1), write_parts)
    folder = save_checkpoint(tmp_path, state(2), write_parts)
    damage(folder)
    with pytest.raises(CheckpointError, match=message) as caught:
        read_checkpoint(folder)
    assert caught.value.choices == ("step_000001",)


def test_a_missing_checkpoint_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no checkpoint folder"):
        read_checkpoint(tmp_path / "step_000009")


def test_a_failed_save_leaves_nothing_and_keeps_the_last(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, state(1), write_parts)

    def fail(folder: Path) -> None:
        write_parts(folder)
        raise RuntimeError("engine failed")

    with pytest.raises(RuntimeError, match="engine failed"):
        save_checkpoint(tmp_path, state(2), fail)
    assert [p.name for p in tmp_path.iterdir()] == ["step_000001"]


def test_an_interrupted_write_is_no_checkpoint_and_is_cleared_away(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, state(1), write_parts)
    (tmp_path / ".writing-step_000002").mkdir()
    assert [p.name for p in list_checkpoints(tmp_path)] == ["step_000001"]
    prune_checkpoints(tmp_path, 1)
    assert [p.name for p in tmp_path.iterdir()] == ["step_000001"]


def test_prune_keeps_the_newest(tmp_path: Path) -> None:
    for step in (1, 2, 10):
        save_checkpoint(tmp_path, state(step), write_parts)
    prune_checkpoints(tmp_path, 0)
    assert len(list_checkpoints(tmp_path)) == 3
    prune_checkpoints(tmp_path, 2)
    assert [p.name for p in list_checkpoints(tmp_path)] == ["step_000002", "step_000010"]


def test_resolve_resume(tmp_path: Path) -> None:
    assert resolve_resume(tmp_path, "never") is None
    assert resolve_resume(tmp_path, "auto") is None
    folder = save_checkpoint(tmp_path / "checkpoints", state(5), write_parts)
    assert resolve_resume(tmp_path, "auto") == folder
    assert resolve_resume(tmp_path, "/elsewhere/step_000001") == Path("/elsewhere/step_000001")
