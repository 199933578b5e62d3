"""Checkpoints that are whole or absent: written aside, hashed, made durable, then renamed into place."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from omni_portable.contracts.errors import CheckpointError
from omni_portable.trainer.rundir import disk_errors, fsync_folder, write_json

MANIFEST = "manifest.json"
STATE = "trainer.json"
_NAME = re.compile(r"^step_(\d{6,})$")


@dataclass(frozen=True)
class TrainerState:
    """Where the loop stands. All randomness is derived from (seed, step), so the data position is the step itself.

    Args:
        step: completed steps.
        policy_version: version the rollout engine held after that step.
        submissions: groups submitted to the buffer so far.
        fingerprint: of the configuration keys that decide the numbers (see `config_fingerprint`).
    """

    step: int
    policy_version: int
    submissions: int
    fingerprint: str


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _files(folder: Path) -> list[Path]:
    return sorted(p for p in folder.rglob("*") if p.is_file() and p.name != MANIFEST)


def save_checkpoint(root: Path, state: TrainerState, write_parts: Callable[[Path], None]) -> Path:
    """Write ``root/step_NNNNNN``. `write_parts(folder)` adds the engine's files; its errors leave no trace behind."""
    final = root / f"step_{state.step:06d}"
    temporary = root / f".writing-{final.name}"
    with disk_errors(final):
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        try:
            write_parts(temporary)
            write_json(temporary / STATE, asdict(state))
            hashes = {str(path.relative_to(temporary)): _sha256(path) for path in _files(temporary)}
            write_json(temporary / MANIFEST, {"step": state.step, "sha256": hashes})
            shutil.rmtree(final, ignore_errors=True)
            os.replace(temporary, final)
            fsync_folder(root)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
    return final


def list_checkpoints(root: Path) -> list[Path]:
    """Complete checkpoints, oldest first."""
    if not root.is_dir():
        return []
    found = [(int(match.group(1)), path) for path in root.iterdir() if (match := _NAME.match(path.name))]
    return [path for _, path in sorted(found)]


def prune_checkpoints(root: Path, keep: int) -> None:
    """Remove all but the newest `keep` (0 keeps all) and whatever an interrupted write left."""
    for leftover in root.glob(".writing-*"):
        shutil.rmtree(leftover)
    if keep:
        for path in list_checkpoints(root)[:-keep]:
            shutil.rmtree(path)


def read_checkpoint(folder: Path) -> TrainerState:
    """Verify every file against the manifest, then return the trainer's state.

    Raises:
        CheckpointError: the folder or a file is missing, truncated or altered; names the file.
    """
    others = [p.name for p in list_checkpoints(folder.parent) if p != folder]
    hint = "name another checkpoint with trainer.resume=FOLDER" if others else "start anew in another trainer.run_dir"
    if not folder.is_dir():
        raise CheckpointError(f"there is no checkpoint folder {folder}", remedy=hint, choices=others)
    manifest = _read_json(folder / MANIFEST, hint, others)
    for name, expected in manifest["sha256"].items():
        path = folder / name
        if not path.is_file():
            raise CheckpointError(f"checkpoint {folder} lacks the file {name}", remedy=hint, choices=others)
        if _sha256(path) != expected:
            raise CheckpointError(
                f"checkpoint {folder} is corrupt: {name} is not what was saved", remedy=hint, choices=others
            )
    return TrainerState(**_read_json(folder / STATE, hint, others))


def _read_json(path: Path, hint: str, others: list[str]) -> dict:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"checkpoint file {path} cannot be read: {error}", remedy=hint, choices=others) from error
    if not isinstance(value, dict):
        raise CheckpointError(f"checkpoint file {path} holds no object", remedy=hint, choices=others)
    return value


def resolve_resume(run_dir: Path, resume: str) -> Path | None:
    """The checkpoint to continue from: None for a fresh start."""
    if resume == "never":
        return None
    if resume == "auto":
        found = list_checkpoints(run_dir / "checkpoints")
        return found[-1] if found else None
    return Path(resume)
