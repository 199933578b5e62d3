"""AMD Instinct GPUs. Imports nothing heavy."""

from omni_portable.contracts.registry import PluginSpec

SPEC = PluginSpec(
    name="rocm",
    summary="AMD Instinct GPUs: RCCL collectives, AITER, Composable Kernel and Triton attention",
    target="omni_devices.rocm.device:RocmDevice",
    capabilities={
        "generations": ("gfx90a", "gfx942", "gfx950"),
        "accelerator": True,
        "ray_resource": "GPU",
        "stack_check": "omni_devices.rocm.stack:state",
    },
)
