"""What ends an engine's processes where their owner cannot: after `kill -9` of a run, or a start that failed halfway.

Engines start processes that start processes, and not all of them notice that the first one has gone. So a small process
beside them holds the reading end of a pipe; where the owner ends, however it does, the pipe ends, and everything that
carries the engine's mark in its environment is killed. Folders and files that the owner named are removed then, too.

This file is that process's program as well: `python -I guard.py MARK`, which loads nothing but the standard library.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

VARIABLE = "OMNI_PORTABLE_ENGINE"
"""Environment variable that marks an engine's processes."""
OWNER = "OMNI_PORTABLE_ENGINE_OWNER"
"""Environment variable with the process that they belong to."""
SPARED = b"resource_tracker"
"""Python's own process that removes shared memory when those who made it are gone."""
GROUP, SHARED_MEMORY = "vllm_dist_", Path("/dev/shm")  # noqa: S108 - nothing is made there
"""vLLM's tensor-parallel workers on a CPU meet at a file of that name, and name the memory that they share after it."""
LONG = 55
"""Characters of a folder: one for sockets, whose paths have at most 107, is made elsewhere then."""
ROUNDS, ROUND_S = 20, 0.1
"""A process that is killed may have started another one just before."""


class Guard:
    """Watches over one engine from before its first process is started until :meth:`close`.

    Attributes:
        folder: a private one, for what the engine would leave in the temporary folder; goes with the engine.

    Raises:
        LifecycleError: the folder cannot be made.
    """

    def __init__(self) -> None:
        from omni_backends.rollout.external.temporary import private_folder  # what runs by itself does not find it

        self._mark = uuid.uuid4().hex
        parent = tempfile.gettempdir()
        self.folder = private_folder("omni-portable-engine-", parent if len(parent) < LONG else "/tmp")  # noqa: S108
        self._process = subprocess.Popen(  # noqa: S603 - this file, by this interpreter
            [sys.executable, "-I", __file__, self._mark],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            start_new_session=True,  # the terminal's Ctrl-C is for the owner
        )
        self.remove_too(self.folder)

    @property
    def variables(self) -> dict[str, str]:
        """For the environment of the engine's processes: mark, owner, and where vLLM makes sockets and files."""
        kept = os.environ.get("TORCHINDUCTOR_CACHE_DIR", f"{tempfile.gettempdir()}/torchinductor_{os.getuid()}")
        return {
            VARIABLE: self._mark,
            OWNER: str(os.getpid()),
            "VLLM_RPC_BASE_PATH": str(self.folder),
            "TMPDIR": str(self.folder),
            "TORCHINDUCTOR_CACHE_DIR": kept,  # torch's own choice, which TMPDIR would change; it is of use to the next
        }

    def remove_too(self, path: Path) -> None:
        """Where the owner does not come to remove this folder or file, the guard does."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # somebody ended the guard: the owner removes it as ever
            self._process.stdin.write(os.fsencode(path.absolute()) + b"\n")
            self._process.stdin.flush()

    def close(self) -> None:
        """End what is left of the engine, and the guard."""
        if self._process.stdin is None or self._process.stdin.closed:
            return
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.wait()
        if self._process.returncode:  # somebody ended it
            end(self._mark)
            remove(self.folder)


def leave_the_terminal() -> None:
    """Within a process of an engine: Ctrl-C is for the owner, which ends the engine in order. (Processes that are
    started from here on are in the new process group, too.)"""
    mine = str(os.getpid())
    if os.environ.get(OWNER, mine) != mine and os.getpgrp() != os.getpid():
        os.setpgid(0, 0)


def marked(mark: str) -> Iterator[int]:
    """Processes whose environment carries the mark, but for :data:`SPARED` and this one."""
    wanted = f"{VARIABLE}={mark}".encode()
    for folder in Path("/proc").glob("[0-9]*"):
        process = int(folder.name)
        try:
            found = wanted in (folder / "environ").read_bytes().split(b"\0")
            spared = found and SPARED in (folder / "cmdline").read_bytes()
        except OSError:  # it has ended, or is another user's
            continue
        if found and not spared and process != os.getpid():
            yield process


def end(mark: str) -> None:
    """Kill what carries the mark until nothing does."""
    for _ in range(ROUNDS):
        found = list(marked(mark))
        if not found:
            return
        for process in found:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        time.sleep(ROUND_S)


def remove(path: Path) -> None:
    """A folder or file, and the shared memory of workers that met in it."""
    for group in path.glob(f"{GROUP}*"):
        for shared in SHARED_MEMORY.glob(f"{group.name}-*"):
            shared.unlink(missing_ok=True)
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def main() -> None:
    """Wait for the end of the pipe, then end and remove everything."""
    paths = [Path(os.fsdecode(line.rstrip(b"\n"))) for line in sys.stdin.buffer]
    end(sys.argv[1])
    for path in paths:
        remove(path)


if __name__ == "__main__":
    main()
