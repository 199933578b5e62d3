"""LTX-2 and LTX-2.3 (diffusers folders of an `LTX2Pipeline`): video with sound; imports without torch."""

from __future__ import annotations

from dataclasses import dataclass

from omni_portable.contracts.errors import ConfigError
from omni_portable.contracts.registry import PluginSpec


@dataclass(frozen=True)
class LTX2Options:
    """Keys of `model.options` for the family 'ltx2'."""

    max_sequence_length: int = 1024
    """Text tokens of a prompt, padding included; a multiple of the connectors' registers (128 as published)."""
    audio_guidance_scale: float = 0.0
    """Guidance scale of the sound; 0 means rollout.guidance_scale for both. Only where rollout.guidance_scale is not
    1."""
    guidance_rescale: float = 0.0
    """How far guided samples are brought back to the spread of unguided ones, 0 to 1; the stock pipeline has 0.7."""

    def __post_init__(self) -> None:
        """Refuse values that cannot work (`ConfigError`)."""
        if self.max_sequence_length < 1:
            raise ConfigError(f"model.options.max_sequence_length is {self.max_sequence_length}; it must be at least 1")
        if self.audio_guidance_scale < 0:
            raise ConfigError(
                f"model.options.audio_guidance_scale is {self.audio_guidance_scale}; it must be 0 (as the video's) or "
                "above"
            )
        if not 0 <= self.guidance_rescale <= 1:
            raise ConfigError(f"model.options.guidance_rescale is {self.guidance_rescale}; it must be in [0, 1]")


SPEC = PluginSpec(
    name="ltx2",
    summary="LTX-2 / LTX-2.3: text to video with sound, one transformer over both, guidance on clean samples",
    target="omni_portable.models.ltx2.adapter:LTX2Adapter",
    options=LTX2Options,
    capabilities={
        "kinds": ("diffusion",),
        "artifacts": {"video": "video", "audio": "audio"},
        "inputs": (),
        "guidance": True,
        "outline": "omni_portable.models.ltx2.outline:outline",
        "tiny": "omni_portable.models.ltx2.tiny:build_tiny_ltx2",
    },
)
