"""Checkpoints are whole or absent, and damage is named."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from omni_portable.contracts.errors import CheckpointError, RunDirectoryError
from omni_portable.trainer.checkpoint import (
    TrainerState,
    list_checkpoints,
    prune_checkpoints,
    read_checkpoint,
    resolve_resume,
    rewind,
    save_checkpoint,
)


def state(step: int) -> TrainerState:
    return TrainerState(step=step, policy_version=step + 1, fingerprint="abc")


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
        (lambda f: (f / "manifest.json").write_text("[]"), "manifest.json holds no object"),
        (lambda f: (f / "manifest.json").write_text("{}"), "manifest.json does not list"),
        (lambda f: (f / "actor" / "more").write_text(""), "holds actor/more, which its manifest.json does not list"),
        (lambda f: (f / "manifest.json").write_text('{"sha256": {}}'), "manifest.json does not list"),
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


def test_an_interrupted_removal_is_no_checkpoint_and_is_cleared_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for step in (1, 2):
        save_checkpoint(tmp_path, state(step), write_parts)

    def killed(path: Path) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("shutil.rmtree", killed)
        with pytest.raises(KeyboardInterrupt):
            prune_checkpoints(tmp_path, 1)
    assert [p.name for p in list_checkpoints(tmp_path)] == ["step_000002"]
    prune_checkpoints(tmp_path, 1)
    assert [p.name for p in tmp_path.iterdir()] == ["step_000002"]


def test_a_step_saved_again_replaces_what_was_there(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, state(1), write_parts)
    again = TrainerState(step=1, policy_version=9, fingerprint="def")
    assert read_checkpoint(save_checkpoint(tmp_path, again, write_parts)) == again
    assert [p.name for p in tmp_path.iterdir()] == ["step_000001"]


def test_a_state_of_another_version_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr("omni_portable.trainer.checkpoint.asdict", lambda value: {"step": 1, "moon": "full"})
        folder = save_checkpoint(tmp_path, state(1), write_parts)
    with pytest.raises(CheckpointError, match="written by another version.*moon"):
        read_checkpoint(folder)


def test_rewinding_keeps_later_checkpoints_aside_and_drops_later_validations(tmp_path: Path) -> None:
    root = tmp_path / "checkpoints"
    for step in (2, 4, 10):
        save_checkpoint(root, state(step), write_parts)
    for step in (0, 2, 4):
        (tmp_path / "validation" / f"step_{step:06d}").mkdir(parents=True)
    kept = rewind(tmp_path, 2)
    assert [p.name for p in kept] == ["superseded-step_000004", "superseded-step_000010"]
    assert read_checkpoint(kept[1]) == state(10), "whole, and usable by name"
    assert [p.name for p in list_checkpoints(root)] == ["step_000002"]
    assert sorted(p.name for p in (tmp_path / "validation").iterdir()) == ["step_000000", "step_000002"]
    save_checkpoint(root, state(4), write_parts)
    prune_checkpoints(root, 1)
    assert resolve_resume(tmp_path, "auto") == root / "step_000004", "the continuation is the newest now"


def test_rewinding_a_new_directory_does_nothing(tmp_path: Path) -> None:
    assert rewind(tmp_path, 0) == []


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


def test_a_checkpoint_under_the_name_of_another_step_is_refused(tmp_path: Path) -> None:
    folder = save_checkpoint(tmp_path, state(3), write_parts)
    with pytest.raises(CheckpointError, match="step_000007 is of step 3"):
        read_checkpoint(folder.rename(tmp_path / "step_000007"))
    assert read_checkpoint((tmp_path / "step_000007").rename(tmp_path / "best")) == state(3)


def test_a_state_of_another_type_is_refused(tmp_path: Path) -> None:
    folder = save_checkpoint(tmp_path, dataclasses.replace(state(3), policy_version=None), write_parts)
    with pytest.raises(CheckpointError, match="policy_version"):
        read_checkpoint(folder)


def test_what_an_earlier_continuation_superseded_stays(tmp_path: Path) -> None:
    root = tmp_path / "checkpoints"
    save_checkpoint(root, state(2), write_parts)
    kept = []
    for version in (7, 8, 9):
        save_checkpoint(root, dataclasses.replace(state(4), policy_version=version), write_parts)
        kept += rewind(tmp_path, 2)
    assert [path.name for path in kept] == [f"superseded-step_000004{end}" for end in ("", ".2", ".3")]
    assert [read_checkpoint(path).policy_version for path in kept] == [7, 8, 9]
    assert [path.name for path in list_checkpoints(root)] == ["step_000002"]


def test_files_in_the_way_are_named(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / ".removing-step_000001").write_text("mine")
    with pytest.raises(RunDirectoryError, match="Not a directory"):
        prune_checkpoints(tmp_path / "checkpoints", 1)
