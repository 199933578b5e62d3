"""The folder that a report goes to: proved to be writable, owned by one run, and free of what an earlier one left."""

from __future__ import annotations

import fcntl
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from omni_portable.conformance.report_file import FILE_NAME
from omni_portable.contracts.disk import disk_errors
from omni_portable.contracts.errors import ConfigError, RunDirectoryError

HTML_NAME, JUNIT_NAME, LOG_NAME = "report.html", "junit.xml", "log.txt"
_PROMISE = "; nothing that was already saved is lost"


def prepare_folder(folder: Path) -> None:
    """Make the output folder and prove that it can be written, before minutes are spent.

    Raises:
        ConfigError: it cannot.
    """
    with _refused(folder, folder):
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass


@contextmanager
def owned_folder(folder: Path) -> Iterator[None]:
    """Own the folder while the context is open, cleared of an earlier run's files: however this run ends, none of them
    may pass for its result.

    Raises:
        ConfigError: another run owns it, or a file there cannot be replaced.
    """
    with _refused(folder, folder / LOG_NAME):
        log = open(folder / LOG_NAME, "ab")  # noqa: SIM115 - closed below
    with log:
        try:
            fcntl.flock(log, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ConfigError(
                f"--out={folder} is in use by another conformance run", remedy="wait for it, or choose another folder"
            ) from error
        for name in (FILE_NAME, HTML_NAME, JUNIT_NAME):
            with _refused(folder, folder / name):
                (folder / name).unlink(missing_ok=True)
        log.truncate(0)
        yield


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """A temporary folder.

    Raises:
        ConfigError: none can be made.
    """
    try:
        made = tempfile.TemporaryDirectory(prefix="omni-portable-conformance-")
    except OSError as error:
        raise ConfigError(
            f"no folder for temporary files can be made: {error.strerror or error}",
            remedy="set TMPDIR to a folder that can be written and has room",
        ) from error
    with made as work:
        yield Path(work)


@contextmanager
def output_errors() -> Iterator[None]:
    """Promises and remedies for a run directory are not those for the output folder."""
    try:
        yield
    except RunDirectoryError as error:
        problem = error.problem.removesuffix(_PROMISE)
        raise RunDirectoryError(problem, remedy="free some space, or choose another --out") from error


@contextmanager
def _refused(folder: Path, path: Path) -> Iterator[None]:
    try:
        with disk_errors(path):
            yield
    except RunDirectoryError as error:
        problem = error.problem.removesuffix(_PROMISE)
        raise ConfigError(f"--out={folder}: {problem}", remedy="choose another folder") from error
