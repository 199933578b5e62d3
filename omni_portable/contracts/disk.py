"""Failed writes as errors that name the path and the cure, the same in every part of a run."""

from __future__ import annotations

import contextlib
import errno
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from safetensors import SafetensorError

from omni_portable.contracts.errors import RunDirectoryError

FULL = (errno.ENOSPC, errno.EDQUOT)
REFUSED = (
    errno.EACCES,
    errno.EPERM,
    errno.ENOENT,
    errno.ELOOP,
    errno.EROFS,
    errno.ENOTDIR,
    errno.EISDIR,
    errno.EEXIST,
    errno.ENAMETOOLONG,
    errno.EFBIG,
)
BROKEN = (errno.EIO, errno.ESTALE, errno.ENXIO, errno.ENODEV, errno.EREMOTEIO, errno.ETIMEDOUT)
"""A disk or its connection failed."""


@dataclass(frozen=True)
class Cures:
    """What to do about a disk that is full, that refuses a path, or that fails."""

    full: str
    refused: str
    broken: str


OF_A_RUN = Cures(
    full="free some space, then continue with trainer.resume=auto",
    refused="choose another trainer.run_dir or change its permissions",
    broken="look after the disk, then continue with trainer.resume=auto; what was already saved is whole",
)


@contextlib.contextmanager
def disk_errors(path: Path, cures: Cures = OF_A_RUN) -> Iterator[None]:
    """Turn the operating system's complaints about a write into an error that names the path and the cure."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        number = _error_number(error)
        if number in FULL:
            raise RunDirectoryError(
                f"no space left on the disk that holds {path}; nothing that was already saved is lost",
                remedy=cures.full,
            ) from error
        if number in REFUSED:
            raise RunDirectoryError(
                f"cannot write {path}: {os.strerror(number)}",
                remedy=cures.refused,
            ) from error
        if number in BROKEN or (not number and "I/O error" in str(error)):
            raise RunDirectoryError(
                f"cannot write {path}: {os.strerror(number) if number else error}",
                remedy=cures.broken,
            ) from error
        raise


def _error_number(error: OSError | SafetensorError) -> int:
    """The operating system's number (0: unknown); safetensors gives it as text, '... (os error 28)'."""
    if isinstance(error, OSError):
        return error.errno or 0
    found = re.search(r"os error (\d+)", str(error))
    return int(found.group(1)) if found else 0
