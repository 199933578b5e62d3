"""AMD's compute driver in sysfs: which GPUs there are, without a context and without torch.

Each node of the topology is a processor or a GPU; `gfx_target_version` of the latter is MAJOR * 10000 + MINOR * 100 +
STEPPING, where the last two are spelled in hexadecimal ('gfx90a' is 9.0.10).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

TOPOLOGY = Path("/sys/class/kfd/kfd/topology/nodes")
DRIVER = Path("/sys/module/amdgpu/version")
KERNEL = Path("/proc/sys/kernel/osrelease")


@dataclass(frozen=True)
class Gpu:
    """One GPU that this process may open; `index` in the order of the driver, `model` as its PCI device id."""

    index: int
    model: str
    generation: str


def gpus() -> list[Gpu]:
    """Every GPU of the host that a control group does not close to this process; the driver hides the others' facts."""
    nodes = sorted((node for node in TOPOLOGY.glob("*") if node.name.isdecimal()), key=lambda node: int(node.name))
    found = [facts for node in nodes if (facts := _facts(node)).get("gfx_target_version", "0") != "0"]
    return [
        Gpu(index, f"{int(facts.get('device_id', '0')):#06x}", gfx_name(int(facts["gfx_target_version"])))
        for index, facts in enumerate(found)
    ]


def gfx_name(target_version: int) -> str:
    """90402 -> 'gfx942', 90010 -> 'gfx90a'."""
    major, rest = divmod(target_version, 10000)
    minor, stepping = divmod(rest, 100)
    return f"gfx{major}{minor:x}{stepping:x}"


def driver_version() -> str:
    """Of the amdgpu module where it was installed apart from the kernel, else the kernel's release."""
    if DRIVER.is_file():
        return f"amdgpu {DRIVER.read_text(encoding='utf-8').strip()}"
    return f"amdgpu of Linux {KERNEL.read_text(encoding='utf-8').strip()}"


def _facts(node: Path) -> dict[str, str]:
    try:
        text = (node / "properties").read_text(encoding="utf-8")
    except PermissionError:  # a container without this GPU
        return {}
    return dict(line.split(maxsplit=1) for line in text.splitlines() if " " in line)
