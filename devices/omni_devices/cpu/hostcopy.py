"""Copies of storages in a temporary file without a name, which is gone when it is closed or the process ends.

On the CPU the host *is* the device: a copy in other host memory would free nothing, so the copy goes to disk.
"""

from __future__ import annotations

import ctypes
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from omni_devices.cpu.host import filesystem
from omni_portable.contracts.errors import LifecycleError

if TYPE_CHECKING:
    import torch

    from omni_devices.common.storages import Slot

IN_MEMORY = ("tmpfs", "ramfs")
"""File systems whose files are memory."""


class HostCopy:
    """The bytes of some storages, in the order given.

    Args:
        slots: all with memory; read here, none is changed.
        folder: where the file goes; must be on disk.

    Raises:
        LifecycleError: `folder` is in memory.
        OSError: no room or a failing disk; nothing is left behind.
    """

    def __init__(self, slots: Sequence[Slot], folder: Path) -> None:
        refuse_memory(folder)
        self.folder = folder
        self.nbytes = sum(slot.nbytes for slot in slots)
        self._file = tempfile.TemporaryFile(dir=folder, buffering=0)  # noqa: SIM115 - close() ends it
        try:
            if self.nbytes:
                os.posix_fallocate(self._file.fileno(), 0, self.nbytes)  # a full disk shows before anything is written
            offset = 0
            for slot in slots:
                offset = self._transfer(slot.storage, offset, os.pwrite)
        except BaseException:
            self._file.close()
            raise

    def restore(self, slots: Sequence[Slot]) -> None:
        """Fill the slots, which have memory again, in the order in which they were copied.

        Raises:
            OSError: the file cannot be read in full.
        """
        offset = 0
        for slot in slots:
            offset = self._transfer(slot.storage, offset, _pread)

    def close(self) -> None:
        """Give the file's room back."""
        self._file.close()

    def _transfer(self, storage: torch.UntypedStorage, offset: int, call: _Call) -> int:
        view = memory(storage)
        done = 0
        while done < len(view):
            count = call(self._file.fileno(), view[done:], offset + done)
            if count == 0:
                raise OSError(f"the copy ends after {offset + done} of {self.nbytes} bytes")
            done += count
        return offset + done


if TYPE_CHECKING:
    from collections.abc import Callable

    _Call = Callable[[int, memoryview, int], int]


def _pread(descriptor: int, view: memoryview, offset: int) -> int:
    return os.preadv(descriptor, [view], offset)


def memory(storage: torch.UntypedStorage) -> memoryview:
    """The storage's bytes, writable, without a copy."""
    block = (ctypes.c_ubyte * storage.nbytes()).from_address(storage.data_ptr())
    return memoryview(block).cast("B")


def refuse_memory(folder: Path) -> None:
    """Raise `LifecycleError` where `folder` is kept in memory, so that a copy there would free nothing."""
    kind = filesystem(folder)
    if kind in IN_MEMORY:
        raise LifecycleError(
            f"sleep level 1 keeps its copy in {folder}, which is a {kind}: it would stay in memory",
            remedy="set TMPDIR to a folder on disk, or use sleep level 2",
        )
