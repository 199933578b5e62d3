"""Several machines on one: each has a network address, a host name, processes and shared memory of its own.

They are namespaces of the kernel, joined by a bridge in one more; files are shared, but for Ray's session directory.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from tests.support.processes import assert_gone

NETWORK = "10.77.0"
PROGRAMS = ("unshare", "nsenter", "ip", "mount", "hostname")
KINDS = ("--net", "--mount", "--uts", "--pid")
BOOT = """
hostname {name} && mkdir -p /tmp/ray && mount -t tmpfs tmpfs /dev/shm && mount -t tmpfs tmpfs /tmp/ray &&
ip link set lo up && echo up && exec sleep infinity
"""


@dataclass(frozen=True)
class Machine:
    """One of them.

    Args:
        address: of it, as the others see it.
        init: its first process, with which all others end.
    """

    address: str
    init: psutil.Process

    def start(self, argv: Sequence[str], log: Path, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
        """A command on it, whose output goes to `log`."""
        inside = ["nsenter", f"--target={self.init.pid}", *KINDS, *argv]
        with log.open("ab") as output:
            return subprocess.Popen(inside, stdout=output, stderr=output, env={**os.environ, **environment})

    def power_off(self) -> None:
        """Every process on it is gone at once."""
        self.init.kill()
        assert_gone([self.init])


@contextmanager
def machines(count: int) -> Iterator[list[Machine]]:
    """So many, on one network; all that runs on them ends here. The test is skipped where the system has no such
    thing, or allows it to nobody but root."""
    missing = [program for program in PROGRAMS if shutil.which(program) is None]
    if missing:
        pytest.skip(f"no {', '.join(missing)} here, to make machines with")
    if subprocess.run(["unshare", *KINDS, "--fork", "true"], capture_output=True, check=False).returncode:
        pytest.skip("this user may not make namespaces")
    with ExitStack() as stack:
        switch = stack.enter_context(_process(["unshare", "--net", "sh", "-c", "echo up && exec sleep infinity"]))
        _run("nsenter", f"--target={switch}", "--net", "ip", "link", "add", "bridge", "type", "bridge")
        _run("nsenter", f"--target={switch}", "--net", "ip", "link", "set", "bridge", "up")
        found = []
        for number in range(1, count + 1):
            script = BOOT.format(name=f"machine{number}")
            how = ["--fork", "--mount-proc", "--kill-child", "--propagation=private"]
            outer = stack.enter_context(_process(["unshare", *KINDS, *how, "sh", "-c", script]))
            (init,) = psutil.Process(outer).children()
            found.append(Machine(f"{NETWORK}.{number}", init))
            _plug_in(init.pid, switch, number)
        yield found


def _plug_in(pid: int, switch: int, number: int) -> None:
    port = f"port{number}"
    pair = ("link", "add", "eth0", "netns", str(pid), "type", "veth", "peer", "name", port, "netns", str(switch))
    _run("ip", *pair)
    _run("nsenter", f"--target={switch}", "--net", "ip", "link", "set", port, "master", "bridge", "up")
    inside = ("nsenter", f"--target={pid}", "--net", "ip")
    _run(*inside, "address", "add", f"{NETWORK}.{number}/24", "dev", "eth0")
    _run(*inside, "link", "set", "eth0", "up")


@contextmanager
def _process(argv: list[str]) -> Iterator[int]:
    """A process that has said that it is up."""
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
    assert process.stdout is not None
    try:
        said = process.stdout.readline()
        assert said == b"up\n", said
        yield process.pid
    finally:
        process.kill()
        process.wait()


def _run(*argv: str) -> None:
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert not done.returncode, f"{' '.join(argv)}: {done.stderr}"
