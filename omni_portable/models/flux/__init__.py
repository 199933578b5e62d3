"""FLUX.1 (diffusers folders of a `FluxPipeline`); imports without torch."""

from __future__ import annotations

from dataclasses import dataclass

from omni_portable.config.rules import GUIDANCE
from omni_portable.contracts.errors import ConfigError
from omni_portable.contracts.registry import PluginSpec


@dataclass(frozen=True)
class FluxOptions:
    """Keys of `model.options` for the family 'flux'."""

    max_sequence_length: int = 512
    """T5 tokens that every prompt is padded or cut to, 1 to 512."""
    guidance_embedding: float = 3.5
    """Guidance that the model is told of (FLUX.1-dev was distilled with it), in rollouts and in training alike; a model
    without that input (FLUX.1-schnell) is not told. It is not `rollout.guidance_scale`, which runs a second prompt."""

    def __post_init__(self) -> None:
        if not 1 <= self.max_sequence_length <= 512:
            raise ConfigError(
                f"model.options.max_sequence_length is {self.max_sequence_length}; FLUX takes 1 to 512 tokens"
            )
        if not GUIDANCE.holds(self.guidance_embedding):
            raise ConfigError(f"model.options.guidance_embedding is {self.guidance_embedding}; it must be {GUIDANCE}")


SPEC = PluginSpec(
    name="flux",
    summary="FLUX.1: text to image, flow matching, a CLIP and a T5, guidance as an input",
    target="omni_portable.models.flux.adapter:FluxAdapter",
    options=FluxOptions,
    capabilities={
        "kinds": ("diffusion",),
        "artifacts": {"image": "image"},
        "inputs": (),
        "guidance": True,
        "check_extent": "omni_portable.models.flux.folder:check_extent",
        "outline": "omni_portable.models.flux.outline:outline",
        "tiny": "omni_portable.models.flux.tiny:build_tiny_flux",
    },
)
