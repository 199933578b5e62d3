"""Capabilities and static profile per generation; no torch, no vendor module, no hardware."""

from __future__ import annotations

from omni_devices.ascend import environment, facts, generations, host, vllm_build
from omni_devices.ascend.attention import AscendAttention
from omni_devices.ascend.channels import BACKEND, CHANNELS
from omni_devices.ascend.facts import FACTS
from omni_devices.ascend.kernels import TABLE
from omni_devices.common.kernel_table import COMPONENTS
from omni_portable.contracts.device import DeviceCapabilities, PackageNeed, StaticProfile

NAME = "ascend"
TORCH_DEVICE_TYPE = "npu"
FIRST = generations.NAMES[0]
"""The generation whose facts stand for the device where none is named."""

CONSTRAINTS = "dockerfiles/constraints/ascend.txt"
IMAGE = "dockerfiles/Dockerfile.ascend"
_CPU_INDEX = "--index-url https://download.pytorch.org/whl/cpu"
_ASCEND_INDEX = "--extra-index-url https://mirrors.huaweicloud.com/ascend/repos/pypi"


def capabilities(generation: str, channels: tuple[str, ...] = CHANNELS) -> DeviceCapabilities:
    """What may run on a generation; `channels` are those of the pinned stack where the host's are not known."""
    return DeviceCapabilities(
        dtypes=("bfloat16", "float16", "float32"),
        default_dtype="bfloat16",
        default_dtype_reason=(
            "every generation multiplies bfloat16 in hardware and fused attention takes it; float32 falls to slower "
            "products, and float64 does not exist here"
        ),
        weight_channels=channels,
        features={
            "bf16_native": True,
            "float64": False,
            "graphs": True,
            "ipc": "ipc" in channels,
            "pinned_memory": True,
            "sleep_allocator": True,
            **FACTS[generation].features,
        },
    )


def packages(generation: str) -> tuple[PackageNeed, ...]:
    """The pinned stack of a generation; CANN is no Python package and is named in the notes."""
    return (
        PackageNeed(
            "torch", f"=={facts.TORCH}", "tensors; the CPU build", f"pip install torch=={facts.TORCH} {_CPU_INDEX}"
        ),
        PackageNeed(
            "torch-npu", f"=={facts.TORCH_NPU}", "torch's device 'npu'", f"pip install torch-npu=={facts.TORCH_NPU}"
        ),
        PackageNeed(
            vllm_build.DISTRIBUTION,
            ">=0.23",
            "rollouts by vLLM and vLLM-Omni, sleeping engines",
            vllm_build.reinstall(generation),
            optional=True,
            serves=f"vllm=={facts.SERVED_VLLM}",
        ),
        PackageNeed(
            "triton-ascend",
            f"=={facts.TRITON_ASCEND}",
            "vLLM-Ascend's triton kernels (in place of triton)",
            f"pip uninstall -y triton && pip install triton-ascend=={facts.TRITON_ASCEND} {_ASCEND_INDEX}",
            optional=True,
        ),
        PackageNeed(
            "mindiesd",
            ">=3.1,<4",
            "vLLM-Omni's FLASH_ATTN (attention 'fusion_attention')",
            f"pip install mindiesd=={facts.MINDIE_SD}",
            optional=True,
        ),
    )


def static_profile(generation: str = "") -> StaticProfile:
    """Planning's answers; without a generation those of an A2, and the notes say so.

    Raises:
        DeviceError: no such generation.
    """
    generations.check(generation)
    chosen = generation or FIRST
    attention = AscendAttention(chosen, lookup=None)
    return StaticProfile(
        name=NAME,
        generation=chosen,
        capabilities=capabilities(chosen),
        attention_families=_families(chosen),
        default_attention={component: family for component, family in TABLE.defaults.items()},
        memory_bytes=FACTS[chosen].memory_bytes,
        collective_backend=BACKEND,
        environment=environment.common(chosen),
        notes=notes(chosen)
        if generation
        else (f"no generation was named: these are facts of '{FIRST}'", *notes(chosen)),
        torch_device_type=TORCH_DEVICE_TYPE,
        attention=attention,
        reserved_bytes=facts.reserved_bytes(),
        packages=packages(chosen),
        constraints=CONSTRAINTS,
        image=f"{IMAGE} --build-arg SOC={chosen}",
        evidence="not run on hardware",
    )


def _families(generation: str) -> tuple[str, ...]:
    """Families that serve a component of the generation, in the table's order."""
    offered = {family for component in COMPONENTS for family in TABLE.offered(component, generation)}
    return tuple(family for family in dict.fromkeys(row.family for row in TABLE.rows) if family in offered)


def notes(generation: str) -> tuple[str, ...]:
    """What tables of values cannot say, one sentence each."""
    known = FACTS[generation]
    return (
        f"'{generation}' is the {generations.PRODUCTS[generation]}: {known.topology}",
        f"memory is {known.memory_note}; the driver keeps about 3 GiB of it",
        f"CANN {facts.CANN} with NNAL of the same version, in an image based on {facts.BASE_IMAGES[generation]}",
        "vLLM-Ascend serves one generation per installation: build it with "
        f"SOC_VERSION={vllm_build.SOC_VERSIONS[generation]}",
        known.hccl_note,
        f"HCCL takes {2 * facts.HCCL_BUFFER_BYTES // facts.MIB} MiB of every device for each communicator; room for "
        f"{facts.COMMUNICATORS} is kept",
        f"weight channel 'ipc' needs driver {host.IPC_DRIVER} and CANN {host.IPC_CANN} or newer; the device offers it "
        "where it finds them",
        f"a launcher sets {environment.VISIBLE_DEVICES} (ascending order) and, between hosts, HCCL_IF_IP or "
        "HCCL_SOCKET_IFNAME",
    )
