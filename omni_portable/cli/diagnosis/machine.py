"""Room to work in: memory, disk, folders that can be written."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil

from omni_portable.cli.diagnosis.check import Check

GIB = 2**30
NEEDED_MEMORY = 2 * GIB
NEEDED_DISK = 1 * GIB


def machine_checks(folder: Path) -> Iterator[Check]:
    """Check memory, and disk and permissions where runs will be written (`folder`) and for temporary files."""
    yield memory_check(psutil.virtual_memory().available, psutil.virtual_memory().total)
    yield from folder_checks("runs", folder, "start in another folder or set trainer.run_dir")
    yield from temporary_checks("set TMPDIR to a folder with room")
    yield Check("processors", "ok", f"{len(psutil.Process().cpu_affinity())} usable of {os.cpu_count()}")


def temporary_checks(remedy: str) -> Iterator[Check]:
    try:
        folder = Path(tempfile.gettempdir())
    except OSError as error:
        yield Check("temporary files", "fail", error.strerror or str(error), remedy)
        return
    yield from folder_checks("temporary files", folder, remedy)


def memory_check(available: int, total: int) -> Check:
    found = f"{available / GIB:.1f} of {total / GIB:.1f} GiB available"
    if available < NEEDED_MEMORY:
        return Check("memory", "warn", found, f"the smallest recipe wants about {NEEDED_MEMORY / GIB:g} GiB")
    return Check("memory", "ok", found)


def folder_checks(name: str, folder: Path, remedy: str) -> Iterator[Check]:
    """Can the folder be written (it or its nearest existing parent), and is there room?"""
    existing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    try:
        with tempfile.NamedTemporaryFile(dir=existing, prefix=".omni-portable-doctor-"):
            pass
    except OSError as error:
        yield Check(name, "fail", f"{existing} cannot be written: {error.strerror}", remedy)
        return
    free = shutil.disk_usage(existing).free
    status = "warn" if free < NEEDED_DISK else "ok"
    hint = f"free some space, or {remedy}" if status == "warn" else ""
    yield Check(name, "warn" if status == "warn" else "ok", f"{existing} is writable, {free / GIB:.1f} GiB free", hint)
