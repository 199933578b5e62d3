"""What the kernel says about the processor and its memory, read from /proc; no torch."""

from __future__ import annotations

import os
import platform
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from omni_devices.cpu import cgroup
from omni_portable.contracts.errors import DeviceError

PROC = Path("/proc")
BF16_FLAGS = ("amx_bf16", "avx512_bf16", "bf16")
"""Instructions that multiply bf16 in hardware; the last is Arm's name."""
REPORTED_FLAGS = (
    *("avx2", "fma", "avx512f", "avx512bw", "avx512_vnni", "avx512_bf16", "avx512_fp16", "amx_tile", "amx_bf16"),
    *("asimd", "sve", "sve2", "bf16", "i8mm"),
)
"""Instruction-set flags worth reporting: those that change which kernels torch and oneDNN pick."""


@dataclass(frozen=True)
class Processor:
    """Model name and instruction-set flags, as in /proc/cpuinfo."""

    model: str
    flags: frozenset[str]

    @property
    def bf16_flags(self) -> tuple[str, ...]:
        """The flags that make bf16 arithmetic native here; empty where it is emulated."""
        return tuple(flag for flag in BF16_FLAGS if flag in self.flags)

    @property
    def isa(self) -> str:
        """The reported flags in a fixed order, separated by spaces."""
        return " ".join(flag for flag in REPORTED_FLAGS if flag in self.flags)


def parse_cpuinfo(text: str) -> Processor:
    """The first processor of a /proc/cpuinfo; Arm kernels give no model name, so the architecture stands in for it."""
    entries: dict[str, str] = {}
    for line in text.splitlines():
        key, _, value = line.partition(":")
        entries.setdefault(key.strip(), value.strip())
    model = entries.get("model name") or entries.get("Hardware") or f"{platform.machine()} processor"
    return Processor(model, frozenset((entries.get("flags") or entries.get("Features") or "").split()))


@cache
def processor() -> Processor:
    """This host's processor."""
    return parse_cpuinfo(_read(PROC / "cpuinfo"))


def usable_cores() -> int:
    """Cores this process may use: its affinity mask, cut by the tightest control-group quota."""
    allowed = len(os.sched_getaffinity(0))
    return min(allowed, cgroup.cpu_limit() or allowed)


def kernel() -> str:
    """Name and release of the operating system's kernel."""
    return f"{platform.system()} {platform.release()}"


def total_memory(proc: Path = PROC, groups: Path = cgroup.CGROUP) -> int:
    """Bytes this process may ever hold: the machine's memory or the tightest control-group limit."""
    limits = [budget.limit for budget in cgroup.memory_budgets(proc, groups)]
    return min(_kib(proc / "meminfo", "MemTotal"), *limits) if limits else _kib(proc / "meminfo", "MemTotal")


def free_memory(proc: Path = PROC, groups: Path = cgroup.CGROUP) -> int:
    """Bytes that could still be allocated without swapping or meeting a control-group limit."""
    room = [max(0, budget.limit - budget.used) for budget in cgroup.memory_budgets(proc, groups)]
    return min([_kib(proc / "meminfo", "MemAvailable"), *room])


def peak_resident(proc: Path = PROC) -> int:
    """Largest resident set this process has had, in bytes."""
    return _kib(proc / "self" / "status", "VmHWM")


def resident(proc: Path = PROC) -> int:
    """Bytes of this process in memory now.

    From smaps_rollup, which walks the page tables: the counters behind /proc/self/status are kept per thread and lag.
    """
    return _kib(proc / "self" / "smaps_rollup", "Rss")


def filesystem(folder: Path, proc: Path = PROC) -> str:
    """Type of the file system that holds `folder` ('ext4', 'tmpfs', ...)."""
    best, kind = -1, "unknown"
    target = folder.resolve()
    for line in _read(proc / "self" / "mountinfo").splitlines():
        before, _, after = line.partition(" - ")
        mount = Path(re.sub(r"\\(\d{3})", lambda octal: chr(int(octal[1], 8)), before.split()[4]))
        if target.is_relative_to(mount) and len(mount.parts) >= best:
            best, kind = len(mount.parts), after.split()[0]
    return kind


def _kib(file: Path, key: str) -> int:
    for line in _read(file).splitlines():
        name, _, value = line.partition(":")
        if name == key:
            return int(value.split()[0]) * 1024
    raise DeviceError(f"{file} has no line '{key}', so memory cannot be measured", remedy="use a Linux kernel >= 4.14")


def _read(file: Path) -> str:
    try:
        return file.read_text()
    except OSError as error:
        raise DeviceError(
            f"cannot read {file} ({error.strerror}): the 'cpu' device measures the host there",
            remedy="run on Linux with /proc mounted",
        ) from error
