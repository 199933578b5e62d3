"""MiniMax-H3 (diffusers folders of a `MiniMaxH3ModularPipeline`): video with sound; imports without torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from omni_portable.config.rules import LARGEST_SHIFT
from omni_portable.contracts.errors import ConfigError
from omni_portable.contracts.registry import PluginSpec

Keyframes = Literal["any", "none", "first", "last", "first_last"]


@dataclass(frozen=True)
class MiniMaxH3Options:
    """Keys of `model.options` for the family 'minimax_h3'."""

    keyframes: Keyframes = "any"
    """Frames that every prompt must bring as 'first_frame' and 'last_frame'; 'any' takes what there is."""
    max_sequence_length: int = 1024
    """Text tokens of a prompt, without those of its frames; longer prompts are cut."""
    text_encoder_layer: int = 50
    """Layer of the text encoder whose output conditions the transformer."""
    shift: float = 0.0
    """Shift of the video's sigmas; 0 takes the folder's (12 as published)."""
    audio_shift: float = 0.0
    """Shift of the sound's sigmas; 0 takes the folder's (3 as published)."""

    def __post_init__(self) -> None:
        """Refuse values that cannot work (`ConfigError`)."""
        for key in ("max_sequence_length", "text_encoder_layer"):
            if getattr(self, key) < 1:
                raise ConfigError(f"model.options.{key} is {getattr(self, key)}; it must be at least 1")
        for key in ("shift", "audio_shift"):
            if not 0 <= getattr(self, key) <= LARGEST_SHIFT:
                raise ConfigError(
                    f"model.options.{key} is {getattr(self, key)}; it must be 0 (the folder's) or above, and at most "
                    f"{LARGEST_SHIFT:g}"
                )


SPEC = PluginSpec(
    name="minimax_h3",
    summary="MiniMax-H3: text, first or last frame to video with sound, one packed sequence, no guidance",
    target="omni_portable.models.minimax_h3.adapter:MiniMaxH3Adapter",
    options=MiniMaxH3Options,
    capabilities={
        "kinds": ("diffusion",),
        "artifacts": {"video": "video", "audio": "audio"},
        "inputs": {"first_frame": "image", "last_frame": "image"},
        "guidance": False,
        "check_extent": "omni_portable.models.minimax_h3.folder:check_extent",
        "outline": "omni_portable.models.minimax_h3.outline:outline",
        "tiny": "omni_portable.models.minimax_h3.tiny:build_tiny_minimax_h3",
    },
)
