"""What the CPU device reads from /proc and control groups, from trees made here."""

from __future__ import annotations

from pathlib import Path

import pytest

from omni_devices.cpu import cgroup, host
from omni_portable.contracts.errors import DeviceError

GIB = 1 << 30
AMD = "processor\t: 0\nmodel name\t: AMD EPYC\nflags\t\t: fpu avx2 fma\n\nmodel name\t: other\nflags\t: amx_bf16\n"
INTEL = "model name : Xeon\nflags : avx2 avx512f avx512_bf16 amx_tile amx_bf16\n"
ARM = "processor : 0\nFeatures : fp asimd sve bf16 i8mm\n"


def tree(root: Path, files: dict[str, str | int]) -> None:
    for name, content in files.items():
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(str(content))


@pytest.mark.parametrize(
    ("text", "model", "bf16", "isa"),
    [
        (AMD, "AMD EPYC", (), "avx2 fma"),
        (INTEL, "Xeon", ("amx_bf16", "avx512_bf16"), "avx2 avx512f avx512_bf16 amx_tile amx_bf16"),
        (ARM, "processor", ("bf16",), "asimd sve bf16 i8mm"),
        ("", "processor", (), ""),
    ],
)
def test_cpuinfo(text: str, model: str, bf16: tuple[str, ...], isa: str) -> None:
    processor = host.parse_cpuinfo(text)
    assert model in processor.model
    assert processor.bf16_flags == bf16
    assert processor.isa == isa


MEMINFO = f"MemTotal: {16 * 1024 * 1024} kB\nMemAvailable: {12 * 1024 * 1024} kB\n"
V2_NESTED = {
    "proc/self/cgroup": "0::/job/step",
    "cg/memory.max": "max",
    "cg/job/memory.max": 8 * GIB,
    "cg/job/memory.current": 7 * GIB,
    "cg/job/memory.stat": f"anon 5\ninactive_file {2 * GIB}\n",
    "cg/job/step/memory.max": 10 * GIB,
    "cg/job/step/memory.current": 1 * GIB,
}
V2_ROOT_ONLY = {"proc/self/cgroup": "0::/docker/abc", "cg/memory.max": 4 * GIB, "cg/memory.current": 1 * GIB}
V1 = {
    "proc/self/cgroup": "9:cpu,cpuacct:/a\n4:memory:/a/b\n0::/",
    "cg/memory/memory.limit_in_bytes": 9223372036854771712,
    "cg/memory/memory.usage_in_bytes": 5 * GIB,
    "cg/memory/a/b/memory.limit_in_bytes": 6 * GIB,
    "cg/memory/a/b/memory.usage_in_bytes": 3 * GIB,
    "cg/memory/a/b/memory.stat": f"total_inactive_file {GIB}\ninactive_file 0\n",
}
UNLIMITED = {"proc/self/cgroup": "0::/", "cg/memory.max": "max"}
NO_GROUPS: dict[str, str | int] = {}


@pytest.mark.parametrize(
    ("files", "total", "free"),
    [
        (V2_NESTED, 8 * GIB, 3 * GIB),
        (V2_ROOT_ONLY, 4 * GIB, 3 * GIB),
        (V1, 6 * GIB, 4 * GIB),
        (UNLIMITED, 16 * GIB, 12 * GIB),
        (NO_GROUPS, 16 * GIB, 12 * GIB),
    ],
    ids=["v2 nested", "v2 root only", "v1", "unlimited", "no groups"],
)
def test_memory_is_cut_to_the_tightest_group(
    tmp_path: Path, files: dict[str, str | int], total: int, free: int
) -> None:
    tree(tmp_path, {"proc/meminfo": MEMINFO, **files})
    assert host.total_memory(tmp_path / "proc", tmp_path / "cg") == total
    assert host.free_memory(tmp_path / "proc", tmp_path / "cg") == free


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({"proc/self/cgroup": "0::/a", "cg/a/cpu.max": "150000 100000", "cg/cpu.max": "max 100000"}, 2),
        ({"proc/self/cgroup": "0::/a", "cg/a/cpu.max": "10000 100000"}, 1),
        ({"proc/self/cgroup": "0::/a", "cg/a/cpu.max": "max 100000"}, None),
        (
            {
                "proc/self/cgroup": "2:cpu,cpuacct:/a",
                "cg/cpu,cpuacct/a/cpu.cfs_quota_us": 400000,
                "cg/cpu,cpuacct/a/cpu.cfs_period_us": 100000,
            },
            4,
        ),
        ({"proc/self/cgroup": "2:cpu:/", "cg/cpu/cpu.cfs_quota_us": -1, "cg/cpu/cpu.cfs_period_us": 100000}, None),
    ],
)
def test_core_quota(tmp_path: Path, files: dict[str, str | int], cores: int | None) -> None:
    tree(tmp_path, files)
    assert cgroup.cpu_limit(tmp_path / "proc", tmp_path / "cg") == cores


def test_file_system_of_the_longest_mount_wins(tmp_path: Path) -> None:
    spaced = str(tmp_path / "a b").replace(" ", "\\040")
    lines = ["22 1 8:1 / / rw shared:1 - ext4 /dev/sda rw", f"23 22 0:5 / {spaced} rw - tmpfs none rw"]
    tree(tmp_path, {"proc/self/mountinfo": "\n".join(lines)})
    proc = tmp_path / "proc"
    assert host.filesystem(tmp_path / "a b" / "c", proc) == "tmpfs"
    assert host.filesystem(tmp_path / "other", proc) == "ext4"


def test_without_proc_the_error_says_so(tmp_path: Path) -> None:
    with pytest.raises(DeviceError, match="cannot read .*status.*\n.*Linux"):
        host.peak_resident(tmp_path)
    tree(tmp_path, {"self/status": "Name: x\n"})
    with pytest.raises(DeviceError, match="no line 'VmHWM'"):
        host.peak_resident(tmp_path)
