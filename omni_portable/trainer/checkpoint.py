"""Checkpoints that are whole or absent: written aside, hashed, made durable, then renamed into place."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import re
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from omni_portable.config.convert import build
from omni_portable.config.paths import user_path
from omni_portable.contracts.disk import disk_errors
from omni_portable.contracts.errors import CheckpointError, ConfigError
from omni_portable.trainer.rundir import fsync_folder, write_json

MANIFEST = "manifest.json"
STATE = "trainer.json"
SUPERSEDED = "superseded-"
_NAME = re.compile(r"^step_(\d{6,})$")


@dataclass(frozen=True)
class TrainerState:
    """Where the loop stands. All randomness is derived from (seed, step), so the data position is the step itself.

    Args:
        step: completed steps.
        policy_version: version the rollout engine held after that step.
        fingerprint: of the configuration keys that decide the numbers (see `config_fingerprint`).
    """

    step: int
    policy_version: int
    fingerprint: str


def _sha256(path: Path, *, sync: bool = False) -> str:
    """Hash of a file's content; `sync` makes it durable as well."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
        if sync:
            os.fsync(file.fileno())
    return digest.hexdigest()


def _files(folder: Path) -> list[Path]:
    return sorted(p for p in folder.rglob("*") if p.is_file() and p.name != MANIFEST and not p.name.startswith("."))


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
            hashes = {str(path.relative_to(temporary)): _sha256(path, sync=True) for path in _files(temporary)}
            write_json(temporary / MANIFEST, {"step": state.step, "sha256": hashes})
            if final.exists():
                _remove(final)
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
    with disk_errors(root):
        for leftover in (*root.glob(".writing-*"), *root.glob(".removing-*")):
            shutil.rmtree(leftover)
        if keep:
            for path in list_checkpoints(root)[:-keep]:
                _remove(path)


def _remove(path: Path) -> None:
    """Remove a checkpoint so that no half of it is ever taken for one."""
    doomed = path.with_name(f".removing-{path.name}")
    os.replace(path, doomed)
    shutil.rmtree(doomed)


def rewind(run_dir: Path, step: int) -> list[Path]:
    """Clear the way for the steps after `step`, which are done (again) by this process.

    Validations of later steps go, as later rows of metrics do; later checkpoints (there are some when an older one was
    named) are kept as ``superseded-step_NNNNNN``, since nothing else could bring them back; where that name is taken
    by an earlier continuation, as ``superseded-step_NNNNNN.2`` and so on.

    Returns:
        Where the later checkpoints are now.
    """
    kept = []
    with disk_errors(run_dir):
        for path in _later(run_dir / "checkpoints", step):
            aside = _free_name(path.with_name(f"{SUPERSEDED}{path.name}"))
            os.replace(path, aside)
            kept.append(aside)
        for path in _later(run_dir / "validation", step):
            shutil.rmtree(path)
    return kept


def _free_name(wanted: Path) -> Path:
    names = (wanted if number == 1 else wanted.with_name(f"{wanted.name}.{number}") for number in itertools.count(1))
    return next(path for path in names if not os.path.lexists(path))


def _later(root: Path, step: int) -> list[Path]:
    return [path for path in list_checkpoints(root) if step_of(path) > step]


def step_of(path: Path) -> int:
    """The step in the name of a checkpoint that :func:`list_checkpoints` gave."""
    return int(path.name.removeprefix("step_"))


def read_checkpoint(folder: Path) -> TrainerState:
    """Verify every file against the manifest, then return the trainer's state.

    Raises:
        CheckpointError: the folder or a file is missing, truncated or altered; names the file.
    """
    others = [p.name for p in list_checkpoints(folder.parent) if p != folder]
    hint = "name another checkpoint with trainer.resume=FOLDER" if others else "start anew in another trainer.run_dir"
    if not folder.is_dir():
        raise CheckpointError(f"there is no checkpoint folder {folder}", remedy=hint, choices=others)
    hashes = _read_json(folder / MANIFEST, hint, others).get("sha256")
    if not isinstance(hashes, dict) or STATE not in hashes:
        raise CheckpointError(f"{folder / MANIFEST} does not list the checkpoint's files", remedy=hint, choices=others)
    for name, expected in hashes.items():
        path = folder / name
        if not path.is_file():
            raise CheckpointError(f"checkpoint {folder} lacks the file {name}", remedy=hint, choices=others)
        if _sha256(path) != expected:
            raise CheckpointError(
                f"checkpoint {folder} is corrupt: {name} is not what was saved", remedy=hint, choices=others
            )
    unlisted = [name for path in _files(folder) if (name := str(path.relative_to(folder))) not in hashes]
    if unlisted:
        raise CheckpointError(
            f"checkpoint {folder} holds {unlisted[0]}, which its {MANIFEST} does not list", remedy=hint, choices=others
        )
    try:
        state = build(TrainerState, _read_json(folder / STATE, hint, others), STATE)
    except ConfigError as error:
        raise CheckpointError(
            f"checkpoint {folder} was written by another version: {error.problem}", remedy=hint
        ) from error
    named = _NAME.match(folder.name)
    if named and int(named.group(1)) != state.step:
        raise CheckpointError(
            f"checkpoint {folder} is of step {state.step}: it was renamed", remedy="give it its own name back"
        )
    return state


def _read_json(path: Path, hint: str, others: list[str]) -> dict:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
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
    return user_path(resume, "trainer.resume")
