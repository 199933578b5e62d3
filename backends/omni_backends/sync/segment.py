"""Shared memory without a name: two processes of one machine map the same pages, and nothing is left behind.

The pages belong to a file in /dev/shm that was never linked into the directory (`O_TMPFILE`); a peer opens it through
`/proc/PID/fd`. So the kernel frees it when the last process that holds it ends, also by `kill -9`, and there is nothing
to clean up. The file's identity travels beside its place, so that a process number used again is noticed.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import torch

from omni_portable.contracts.errors import WeightSyncError

FOLDER = Path("/dev/shm")  # noqa: S108 - unnamed files only
KIND = "shared_memory"


class Segment:
    """A mapped piece of shared memory; `memory` is its bytes as a uint8 tensor (the reader must not write)."""

    def __init__(self, descriptor: int, size: int) -> None:
        self._descriptor = descriptor
        self.size = size
        self._map = mmap.mmap(descriptor, size, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE)  # no faults later
        self.memory = torch.frombuffer(self._map, dtype=torch.uint8)

    def describe(self) -> dict[str, Any]:
        """Where a peer finds it: plain values."""
        status = os.fstat(self._descriptor)
        return {
            "kind": KIND,
            "process": os.getpid(),
            "descriptor": self._descriptor,
            "device": status.st_dev,
            "inode": status.st_ino,
            "size": self.size,
        }

    def close(self) -> None:
        """Unmap; views of `memory` must not be used afterwards."""
        if self._descriptor < 0:
            return
        del self.memory
        del self._map  # unmapped with the last view of it
        os.close(self._descriptor)
        self._descriptor = -1

    def __enter__(self) -> Segment:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def free_bytes(folder: Path = FOLDER) -> int:
    """Room for new shared memory; 0 where there is no such folder."""
    try:
        status = os.statvfs(folder)
    except OSError:
        return 0
    return status.f_bavail * status.f_frsize


def create_segment(size: int, folder: Path = FOLDER) -> Segment:
    """New zeroed shared memory of `size` bytes, all of it reserved.

    Raises:
        WeightSyncError: the file system has no room for it, or offers no unnamed files.
    """
    try:
        status = os.statvfs(folder)
        if status.f_bavail * status.f_frsize < size:
            raise _too_small(folder, size)
        descriptor = os.open(folder, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise WeightSyncError(
            f"the weight channel 'shared_memory' cannot make an unnamed file in {folder}: {error.strerror}",
            remedy=f"mount a tmpfs at {folder}",
        ) from error
    try:
        os.posix_fallocate(descriptor, 0, size)
        return Segment(descriptor, size)
    except OSError as error:
        os.close(descriptor)
        raise _too_small(folder, size) from error


def attach_segment(place: Mapping[str, Any]) -> Segment:
    """The shared memory that :meth:`Segment.describe` described, for reading.

    Raises:
        WeightSyncError: its owner has ended, runs elsewhere, or the place holds something else now.
    """
    process, descriptor = int(place["process"]), int(place["descriptor"])
    try:
        found = os.open(f"/proc/{process}/fd/{descriptor}", os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        raise WeightSyncError(
            f"the shared memory of process {process} cannot be opened: {error.strerror}",
            remedy="sender and rollout workers must run on one machine, in one container, as one user",
        ) from error
    status = os.fstat(found)
    identity = (status.st_dev, status.st_ino, status.st_size)
    if identity != (place["device"], place["inode"], place["size"]):
        os.close(found)
        raise WeightSyncError(f"process {process} no longer holds the shared memory that it announced")
    return Segment(found, status.st_size)


def _too_small(folder: Path, size: int) -> WeightSyncError:
    status = os.statvfs(folder)
    free, total = (status.f_frsize * count / 2**20 for count in (status.f_bavail, status.f_blocks))
    return WeightSyncError(
        f"the weight channel 'shared_memory' needs {size / 2**20:.1f} MiB in {folder}, which has {free:.1f} MiB free "
        f"of {total:.1f} MiB",
        remedy="enlarge it (docker run --shm-size=..., or mount -o remount,size=... /dev/shm), or use smaller buckets",
    )
