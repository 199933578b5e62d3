"""The run directory: one owner at a time, writes that are whole or absent, errors that say what is wrong with it."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from pathlib import Path
from typing import Any, TextIO

from omni_portable.config.paths import user_path
from omni_portable.config.schema import RunConfig
from omni_portable.contracts.disk import OF_A_RUN, Cures, disk_errors
from omni_portable.contracts.errors import RunDirectoryError

LOCK_NAME = "run.lock"


def fsync_folder(folder: Path) -> None:
    """Make the folder's entries durable (a rename is only safe once its directory is on disk)."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_text(path: Path, text: str, cures: Cures = OF_A_RUN) -> None:
    """Write a file so that readers and crashes see the old content or the new one, never a part; `cures` are those of
    the error where the disk has no room for it or fails."""
    temporary = path.with_name(f".{path.name}.tmp")
    with disk_errors(path, cures):
        try:
            # A path may hold bytes that are no text; they are written as escapes.
            with open(temporary, "w", encoding="utf-8", errors="backslashreplace") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
            fsync_folder(path.parent)
        except OSError:
            temporary.unlink(missing_ok=True)
            raise


def write_json(path: Path, value: Any) -> None:
    write_text(path, json.dumps(value, indent=2, sort_keys=True, default=str) + "\n")


def run_directory(config: RunConfig) -> Path:
    """Where a run writes: `trainer.run_dir`, or runs/FAMILY/RECIPE, so that recipes of one name do not meet."""
    default = Path("runs", config.model.family, Path(config.recipe or "run").stem)
    return user_path(config.trainer.run_dir or str(default), "trainer.run_dir")


def refuse_second_run(path: Path, resume: str) -> None:
    """Nothing is created or locked, so that it can be asked before anything else is done.

    Raises:
        RunDirectoryError: `path` already holds a run that `resume` (`trainer.resume`) does not continue.
    """
    if resume == "auto" or not (path / "config.yaml").exists():
        return
    why = ""
    if resume != "never":
        folder = user_path(resume, "trainer.resume").resolve()
        if folder.parent == (path / "checkpoints").resolve():
            return
        why = f", and trainer.resume={resume} is no checkpoint of it"
    raise RunDirectoryError(
        f"{path} already holds a run{why}",
        remedy="continue it with --resume (trainer.resume=auto), or choose another trainer.run_dir",
    )


class RunDirectory:
    """Opens (and locks) the directory of one run; a context manager.

    Raises:
        RunDirectoryError: another process holds it, it cannot be written, or it already holds a run that `resume`
            does not continue.
    """

    def __init__(self, path: Path, resume: str) -> None:
        self.path = path
        self._resume = resume
        self._lock: TextIO | None = None

    def __enter__(self) -> RunDirectory:
        with disk_errors(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock = open(self.path / LOCK_NAME, "a+", encoding="utf-8")  # noqa: SIM115 - held for the run's life
        self._take_lock(self._lock)
        try:
            refuse_second_run(self.path, self._resume)
            with disk_errors(self.path):
                for name in ("checkpoints", "validation"):
                    (self.path / name).mkdir(exist_ok=True)
        except BaseException:
            self.__exit__()
            raise
        return self

    def _take_lock(self, lock: TextIO) -> None:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            lock.seek(0)
            owner = lock.read().strip() or "unknown"
            lock.close()
            raise RunDirectoryError(
                f"{self.path} is in use by another run (process {owner})",
                remedy="wait for it, stop it, or choose another trainer.run_dir",
            ) from error
        with disk_errors(self.path):
            lock.truncate(0)
            lock.write(str(os.getpid()))
            lock.flush()

    def __exit__(self, *_: object) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def require_space(self, needed: int, purpose: str) -> None:
        """Stop before work that is bound to fail: `needed` bytes must be free on the disk."""
        free = shutil.disk_usage(self.path).free
        if free < needed:
            raise RunDirectoryError(
                f"{self.path} has {free / 1e6:.0f} MB free, but {purpose} needs about {needed / 1e6:.0f} MB",
                remedy="free some space or choose another trainer.run_dir",
            )
