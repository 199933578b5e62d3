"""The disk on which Ray keeps sockets, logs, and objects that found no room in memory. Without room there its parts end
or wait for each other, and what it says then names anything but the disk."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import TypeVar

import psutil
from ray._common import utils

from omni_portable.contracts.disk import Cures, disk_errors
from omni_portable.contracts.errors import ClusterError, OmniPortableError

Error = TypeVar("Error", bound=OmniPortableError)

LEAST_MIB = 64
"""With less, Ray's processes and their logs have no room."""
LONGEST_SOCKET = 107
"""Bytes of a path that Linux takes for a socket."""
SOCKET = "/session_2026-01-01_00-00-00_000000_1234567/sockets/plasma_store"
"""The longest below the folder of sessions."""
CURE = "free some space, or set RAY_TMPDIR to a folder on a larger disk"


def folder() -> Path:
    """Where a cluster that is started by this process keeps its sessions."""
    return Path(utils.get_default_ray_temp_dir())


def check_disk() -> None:
    """Refuse to start a cluster whose sessions find no room.

    Raises:
        ClusterError: the disk is full, or the folder's name too long for the sockets in it.
        RunDirectoryError: the folder cannot be made or written.
    """
    path = folder()
    with disk_errors(path, Cures(full=CURE, refused="set RAY_TMPDIR to a folder of yours", broken=CURE)):
        path.mkdir(parents=True, exist_ok=True)
        if not os.access(path, os.W_OK):
            raise PermissionError(errno.EACCES, "no right to write", str(path))
    if said := full_disk():
        raise ClusterError(f"no Ray cluster can be started on this machine: {said}", remedy=CURE)
    if (most := LONGEST_SOCKET - len(SOCKET)) < len(str(path)):
        raise ClusterError(
            f"no Ray cluster can be started on this machine: the name of Ray's session directory, {path}, has "
            f"{len(str(path))} characters, and paths of its sockets leave room for {most}",
            remedy="set RAY_TMPDIR to a folder with a shorter name",
        )


def full_disk() -> str:
    """What is wrong with the disk of Ray's sessions on this machine; '' where it has room."""
    path = folder()
    if not path.is_dir() or (free := psutil.disk_usage(str(path)).free >> 20) >= LEAST_MIB:
        return ""
    return f"the disk of Ray's session directory has {free} MiB left ({path}), and Ray needs {LEAST_MIB}"


def of_ray(kind: type[Error], problem: str, remedy: str) -> Error:
    """An error about Ray's processes or objects; where the disk is full, it says so, as the reason to look at first."""
    if said := full_disk():
        return kind(f"{problem}; {said}", remedy=f"{CURE}; then {remedy}")
    return kind(problem, remedy=remedy)
