"""Wan 2.2 (diffusers folders of a `WanPipeline` or a `WanImageToVideoPipeline`); imports without torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from omni_portable.config.rules import GUIDANCE, LARGEST_SHIFT
from omni_portable.contracts.errors import ConfigError
from omni_portable.contracts.registry import PluginSpec

MAX_TOKENS = 1024


@dataclass(frozen=True)
class Wan22Options:
    """Keys of `model.options` for the family 'wan22'."""

    max_sequence_length: int = 512
    """Text tokens of a prompt, 1 to 1024; shorter prompts are filled with zero embeddings, as in the stock pipeline."""
    shift: float = 0.0
    """Shift of the schedule's sigmas; 0 takes the folder's (5 for 720p, 3 for 480p are usual)."""
    low_noise_guidance_scale: float = 0.0
    """Guidance scale of the low-noise expert; 0 means rollout.guidance_scale for both."""
    trained_expert: Literal["both", "high_noise", "low_noise"] = "both"
    """Which of two experts trains; one alone needs model.lora.rank above 0, and model.lora.targets left empty or
    written with the expert's name ('transformer_2.blocks.0.attn1.to_q')."""

    def __post_init__(self) -> None:
        """Refuse values that cannot work (`ConfigError`)."""
        if not 1 <= self.max_sequence_length <= MAX_TOKENS:
            raise ConfigError(
                f"model.options.max_sequence_length is {self.max_sequence_length}; Wan takes 1 to {MAX_TOKENS} tokens"
            )
        for key, most in (("shift", LARGEST_SHIFT), ("low_noise_guidance_scale", GUIDANCE.high)):
            if not 0 <= getattr(self, key) <= most:
                raise ConfigError(
                    f"model.options.{key} is {getattr(self, key)}; it must be 0 (the default) or above, and at most "
                    f"{most:g}"
                )


SPEC = PluginSpec(
    name="wan22",
    summary="Wan 2.2: text or first frame to video, one or two experts, flow matching, UMT5",
    target="omni_portable.models.wan22.adapter:Wan22Adapter",
    options=Wan22Options,
    capabilities={
        "kinds": ("diffusion",),
        "artifacts": {"video": "video"},
        "inputs": {"first_frame": "image", "last_frame": "image"},
        "guidance": True,
        "check_extent": "omni_portable.models.wan22.folder:check_extent",
        "outline": "omni_portable.models.wan22.outline:outline",
        "tiny": {
            "": "omni_portable.models.wan22.tiny:build_tiny_wan22",
            "i2v": "omni_portable.models.wan22.tiny:build_tiny_wan22_i2v",
            "ti2v": "omni_portable.models.wan22.tiny:build_tiny_wan22_ti2v",
        },
    },
)
