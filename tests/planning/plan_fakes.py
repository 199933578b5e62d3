"""A made-up accelerator and engines for planning, beside the real model, algorithm and scorers."""

from __future__ import annotations

from dataclasses import dataclass, replace

from omni_portable.contracts import registry
from omni_portable.contracts.device import (
    AttentionChoice,
    AttentionRequest,
    DeviceCapabilities,
    PackageNeed,
    StaticProfile,
)
from omni_portable.contracts.errors import AttentionUnavailable
from omni_portable.contracts.registry import PluginSpec

GIB = 2**30
RECIPE = "sd3/flow_grpo_ocr_tiny"


class Selector:
    """Serves everything but float16, by one family."""

    def select(self, request: AttentionRequest, choice: str = "auto") -> AttentionChoice:
        if request.dtype == "float16" or choice not in ("auto", "beam"):
            raise AttentionUnavailable(f"no '{choice}' in {request.dtype}", remedy="take beam", choices=["beam"])
        return AttentionChoice(
            request.component, "beam", "actor_beam", "diffusers", "ROLLOUT_BEAM", "beams==2", "asked"
        )

    def verify(self, choice, request, shapes):
        raise AssertionError("planning verifies no kernel")


PROFILE = StaticProfile(
    name="ray_gun",
    generation="g1",
    capabilities=DeviceCapabilities(
        ("bfloat16", "float32"), "bfloat16", "it is fast", ("ipc", "broadcast"), {"fp8": True}
    ),
    attention_families=("beam",),
    default_attention={},
    memory_bytes=8 * GIB,
    collective_backend="beamcl",
    environment={"BEAM": "1"},
    notes=("it hums",),
    torch_device_type="beam",
    attention=Selector(),
    reserved_bytes=GIB,
    packages=(PackageNeed("torch-beam", "==2", "torch's device 'beam'", "pip install torch-beam==2"),),
    constraints="constraints/ray_gun.txt",
    image="Dockerfile.ray_gun",
)


class RayGun:
    """The device; tests replace `present` and `profile`."""

    present = False
    profile = PROFILE

    def __init__(self, generation: str = "") -> None:
        self.name, self.generation = "ray_gun", generation or "g2"

    @classmethod
    def available(cls) -> tuple[bool, str]:
        return cls.present, "no trigger"

    @classmethod
    def static_profile(cls, generation: str = "") -> StaticProfile:
        return replace(cls.profile, generation=generation)


RAY_GUN = PluginSpec(
    "ray_gun", "", f"{__name__}:RayGun", capabilities={"generations": ("g1", "g2"), "accelerator": True}
)
ENGINES = {
    "train_engine": {
        "spread": PluginSpec("spread", "", "x:y", capabilities={"sharded": True}),
        "twins": PluginSpec("twins", "", "x:y", capabilities={"ranks": 2}),
        "elsewhere": PluginSpec("elsewhere", "", "x:y", capabilities={"devices": ("cpu", "ray_gun:g2")}),
    },
    "rollout_engine": {"sleepless": PluginSpec("sleepless", "", "x:y", capabilities={"sleep_levels": ()})},
    "launcher": {"many": PluginSpec("many", "", "x:y", capabilities={"multi_process": True})},
    "reward": {"host_only": PluginSpec("host_only", "", "x:y", capabilities={"devices": ("cpu",)})},
    "device": {"ray_gun": RAY_GUN},
}


@dataclass
class Point:
    spec: PluginSpec
    value: str = "x:y"

    def load(self) -> PluginSpec:
        return self.spec


def install_fakes(monkeypatch) -> None:
    """Add the fakes to what is registered."""
    real = registry._entry_points
    added = {kind: {name: Point(spec) for name, spec in specs.items()} for kind, specs in ENGINES.items()}
    monkeypatch.setattr(registry, "_entry_points", lambda kind: {**real(kind), **added.get(kind, {})})
    monkeypatch.setattr(RayGun, "profile", PROFILE)
    monkeypatch.setattr(RayGun, "present", False)
