"""Folders that an engine needs while it lives."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from omni_portable.contracts.errors import LifecycleError


@contextmanager
def temporary_errors() -> Iterator[None]:
    """Say where there was no room, or no leave, to write what an engine needs in the temporary folder."""
    try:
        yield
    except OSError as error:
        raise LifecycleError(
            f"what the rollout engine needs cannot be written in {tempfile.gettempdir()}: {error.strerror or error}",
            remedy="make room there, or set TMPDIR to a folder with room",
        ) from error


def private_folder(prefix: str, parent: str | None = None) -> Path:
    """A new folder of this user's.

    Args:
        parent: None for the temporary folder.

    Raises:
        LifecycleError: it cannot be made.
    """
    with temporary_errors():
        return Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
