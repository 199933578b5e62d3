"""The host CPU as a device: the reference that every accelerator is compared with. Imports nothing heavy."""

from omni_portable.contracts.registry import PluginSpec

SPEC = PluginSpec(
    name="cpu",
    summary="Host processor: fp32 reference arithmetic, gloo collectives, memory measured in /proc",
    target="omni_devices.cpu.device:CpuDevice",
    capabilities={"generations": (), "accelerator": False},
)
