"""A made-up set of plugins and a small recipe, so that these tests do not depend on what is installed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from omni_portable.contracts.errors import ConfigError
from omni_portable.contracts.registry import PluginSpec


@dataclass(frozen=True)
class AlgorithmOptions:
    clip: float = 1e-4
    noise_level: float = 0.5
    step_kind: Literal["sde", "cps"] = "cps"
    indices: tuple[int, ...] = (1, 2)
    inner: InnerOptions = field(default_factory=lambda: InnerOptions())

    def __post_init__(self) -> None:
        if self.clip == 0:
            raise ConfigError("clip=0 is not possible", remedy="clip must be positive")

    def steps(self, num_steps: int, seed: int) -> tuple[int, ...]:
        if self.indices[-1] >= num_steps:
            raise ValueError(f"step {self.indices[-1]} does not exist")
        return self.indices

    def check(self, num_steps: int) -> None:
        if self.step_kind == "cps" and self.indices[-1] == num_steps - 1:
            raise ConfigError("cps has no noise on the last step", choices=["sde"])


@dataclass(frozen=True)
class InnerOptions:
    beta: float = 0.0


@dataclass(frozen=True)
class ScorerOptions:
    language: str = "en"
    image: str = "image"


@dataclass(frozen=True)
class MandatoryOptions:
    url: str


FAKES = {
    "model": [
        PluginSpec(
            "toy",
            "",
            "x:y",
            capabilities={"kinds": ("diffusion",), "artifacts": {"image": "image"}, "guidance": False},
        ),
        PluginSpec("talker", "", "x:y", capabilities={"kinds": ("autoregressive",)}),
    ],
    "algorithm": [
        PluginSpec(
            "grpo",
            "",
            "x:y",
            AlgorithmOptions,
            {"kind": "diffusion", "needs_log_probs": True, "min_group_size": 2, "step_kinds": ("sde", "cps")},
        ),
        PluginSpec("plain", "", "x:y", capabilities={"kind": "diffusion"}),
    ],
    "reward": [
        PluginSpec("reader", "", "x:y", ScorerOptions, {"artifacts": {"image": "image"}}),
        PluginSpec("listener", "", "x:y", capabilities={"artifacts": {"sound": "audio"}}),
        PluginSpec("remote", "", "x:y", MandatoryOptions),
    ],
    "rollout_engine": [
        PluginSpec("native", "", "x:y", capabilities={"kinds": ("diffusion",), "actor_kernels": True}),
        PluginSpec("texts", "", "x:y", capabilities={"kinds": ("autoregressive",)}),
        PluginSpec("sde_only", "", "x:y", capabilities={"step_kinds": ("sde",)}),
    ],
    "train_engine": [
        PluginSpec("single", "", "x:y"),
        PluginSpec("full_only", "", "x:y", capabilities={"lora": False}),
    ],
    "device": [PluginSpec("cpu", "", "x:y"), PluginSpec("ray_gun", "", "x:y", capabilities={"generations": ("g1",)})],
    "data_plane": [PluginSpec("local", "", "x:y")],
    "launcher": [PluginSpec("local", "", "x:y")],
    "logger": [PluginSpec("jsonl", "", "x:y"), PluginSpec("tensorboard", "", "x:y")],
}


@dataclass
class FakePoint:
    name: str
    value: str
    spec: PluginSpec

    def load(self) -> PluginSpec:
        return self.spec


RECIPE = """
model: {family: toy, path: /models/toy}
algorithm: {name: grpo, clip: 2e-5}
data: {train: prompts.txt}
reward:
  scorers:
    main: {kind: reader}
"""
