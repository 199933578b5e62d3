"""Which generation is present. What must be known before a device context exists is asked of npu-smi."""

from __future__ import annotations

from omni_devices.ascend import facts, generations, host, npu_smi, vllm_build
from omni_devices.common.packages import installed_version
from omni_portable.contracts.errors import DeviceError

INSTALL_TORCH_NPU = (
    f"pip install torch=={facts.TORCH}+cpu torch-npu=={facts.TORCH_NPU} --extra-index-url "
    "https://download.pytorch.org/whl/cpu"
)


def present(root: host.Path = host.ROOT) -> tuple[bool, str]:
    """(present, what was looked for and found): device nodes decide; the rest says what a run would still lack."""
    nodes = host.device_nodes(root)
    manager = host.has_manager(root)
    home = host.cann_home(root)
    torch_npu = installed_version("torch-npu")
    found = (
        f"{len(nodes)} of /dev/davinci*",
        "/dev/davinci_manager" if manager else "no /dev/davinci_manager",
        "npu-smi" if npu_smi.installed() else "no npu-smi",
        f"torch-npu {torch_npu}" if torch_npu else "torch-npu is not installed",
        f"CANN {host.cann_version(home) or 'of unknown version'} in {home}" if home else "no CANN toolkit",
        "set_env.sh is sourced" if host.cann_is_sourced() else "set_env.sh is not sourced",
    )
    return bool(nodes) and manager, ", ".join(found)


def without_context() -> str:
    """The generation by npu-smi, or '' on a host that has no npu-smi; no device context is made.

    Raises:
        DeviceError: a chip that is unknown or not supported.
    """
    return generations.from_name(npu_smi.board().name) if npu_smi.installed() else ""


def from_torch_npu() -> str:
    """The generation by torch_npu's SoC number, or, where it knows no number for the chip, by the chip's name.

    The call makes a device context: allocator settings and HCCL_* variables are not read again after it, and this
    process must not fork.

    Raises:
        DeviceError: torch_npu does not load, or the chip is unknown or not supported.
    """
    load_torch_npu()
    import torch_npu

    number = torch_npu.npu.get_soc_version()
    if number in generations.SOCS:
        return generations.from_number(number)
    name = str(torch_npu.npu.get_device_name(0))
    if generations.names_one(name):
        return generations.from_name(name)  # a variant that is younger than torch_npu's list of numbers
    return generations.from_number(number, name)


def confirm(generation: str) -> None:
    """Hold the generation against torch_npu and against the build of vLLM-Ascend, once the device is in use anyway.

    Raises:
        DeviceError: the device is another one, or vLLM-Ascend was built for another.
    """
    reported = from_torch_npu()
    if reported != generation:
        raise DeviceError(
            f"device 'ascend:{generation}' was chosen, but torch_npu reports '{reported}' "
            f"({generations.PRODUCTS[reported]})",
            remedy=f"set device.name=ascend:{reported}",
        )
    vllm_build.check(vllm_build.installed(), generation)


def load_torch_npu() -> None:
    """Import torch_npu, which gives torch the device type 'npu' and the backend 'hccl'.

    Raises:
        DeviceError: it is not installed, or its libraries are not found.
    """
    try:
        import torch_npu  # noqa: F401
    except ModuleNotFoundError as error:
        raise DeviceError(
            f"device 'ascend' needs torch_npu, and the module '{error.name}' is not installed", remedy=INSTALL_TORCH_NPU
        ) from error
    except (ImportError, OSError, RuntimeError) as error:
        raise DeviceError(
            f"torch_npu {installed_version('torch-npu') or ''} is installed but does not load: {error}",
            remedy=f"make CANN's libraries known first ({host.SET_ENV}), with torch built for the CPU "
            f"(pip install torch=={facts.TORCH} --index-url https://download.pytorch.org/whl/cpu)",
        ) from error
