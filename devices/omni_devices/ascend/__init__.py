"""Ascend A2, A3 and A5 NPUs. Imports nothing heavy."""

from omni_portable.contracts.registry import PluginSpec

SPEC = PluginSpec(
    name="ascend",
    summary="Ascend A2, A3 and A5 NPUs: HCCL collectives, fusion attention",
    target="omni_devices.ascend.device:AscendDevice",
    capabilities={
        "generations": ("a2", "a3", "a5"),
        "accelerator": True,
        "ray_resource": "NPU",
        "stack_check": "omni_devices.ascend.stack:state",
    },
)
