"""NVIDIA GPUs from Ampere on. Imports nothing heavy."""

from omni_portable.contracts.registry import PluginSpec

SPEC = PluginSpec(
    name="cuda",
    summary="NVIDIA GPUs from Ampere on: NCCL collectives, FlashAttention 2 to 4, cuDNN and native attention",
    target="omni_devices.cuda.device:CudaDevice",
    capabilities={
        "generations": ("sm80", "sm89", "sm90", "sm100", "sm120"),
        "accelerator": True,
        "ray_resource": "GPU",
        "stack_check": "omni_devices.cuda.stack:state",
    },
)
