"""LTX-2 and LTX-2.3 (diffusers folders of an `LTX2Pipeline`): video with sound; imports without torch."""

from __future__ import annotations

from dataclasses import dataclass, field

from omni_portable.config.rules import GUIDANCE
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
    stg_scale: float = 0.0
    """Spatio-temporal guidance: how far samples move away from those of a transformer some of whose blocks skip their
    self-attention; 1 is published for LTX-2.3, 0 is off. One more forward per step, also without
    rollout.guidance_scale."""
    audio_stg_scale: float = 0.0
    """As `stg_scale`, of the sound; 0 means that of the video."""
    stg_blocks: list[int] = field(default_factory=lambda: [28])
    """Blocks that skip their self-attention, counted from 0: 28 is published for LTX-2.3, 29 for LTX-2."""
    modality_scale: float = 1.0
    """How far the video moves away from one drawn without its sound, and the other way round; 3 is published for
    LTX-2.3, 1 is off. One more forward per step."""
    audio_modality_scale: float = 0.0
    """As `modality_scale`, of the sound; 0 means that of the video."""

    def __post_init__(self) -> None:
        """Refuse values that cannot work (`ConfigError`)."""
        if self.max_sequence_length < 1:
            raise ConfigError(f"model.options.max_sequence_length is {self.max_sequence_length}; it must be at least 1")
        if not GUIDANCE.holds(self.audio_guidance_scale):
            raise ConfigError(
                f"model.options.audio_guidance_scale is {self.audio_guidance_scale}; it must be 0 (as the video's) or "
                f"above, and at most {GUIDANCE.high:g}"
            )
        least_of = {"stg_scale": 0, "audio_stg_scale": 0, "modality_scale": 1, "audio_modality_scale": 1}
        for key, least in least_of.items():
            value = getattr(self, key)
            if not least <= value <= GUIDANCE.high and not (key == "audio_modality_scale" and value == 0):
                raise ConfigError(
                    f"model.options.{key} is {value}; it must be at least {least} and at most {GUIDANCE.high:g}"
                )
        if (self.stg_scale or self.audio_stg_scale) and not self.stg_blocks:
            raise ConfigError("model.options.stg_blocks is empty, but model.options.stg_scale needs at least one block")
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
        "check_extent": "omni_portable.models.ltx2.folder:check_extent",
        "outline": "omni_portable.models.ltx2.outline:outline",
        "tiny": "omni_portable.models.ltx2.tiny:build_tiny_ltx2",
    },
)
