"""What a MiniMax-H3 folder's config files say, read and cross-checked before any weights load."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omni_portable.contracts.device import AttentionRequest
from omni_portable.contracts.errors import ConfigError, ModelError
from omni_portable.contracts.rollout import Extent
from omni_portable.models.diffusers_folder import Fact, check_frame_count, check_video_size, cross_check, number_list
from omni_portable.models.folders import read_json, whole_numbers

PIPELINE = "MiniMaxH3ModularPipeline"
INDEX = "modular_model_index.json"
CLASSES = {
    "transformer": "MiniMaxH3Transformer3DModel",
    "text_encoder": "Qwen3VLForConditionalGeneration",
    "vae": "AutoencoderKLMiniMaxH3",
    "audio_vae": "AutoencoderKLMiniMaxH3Audio",
}
FRAME_RATE = 24.0
"""Frames per second of every video the model draws."""
AUDIO_LATENTS_PER_SECOND = 40
STEREO = 2
"""Channels of the sound; the autoencoder takes each by itself."""
LEAST_FRAMES = 22
"""Frames of the shortest video the autoencoder decodes: one chunk and its overlap."""

_NUMBERS = {
    "transformer": ("in_channels", "audio_in_channels", "attention_head_dim", "text_dim"),
    "vae": ("latent_channels", "clip_length"),
    "audio_vae": ("latent_channels", "sampling_rate"),
}


@dataclass(frozen=True)
class Geometry:
    """Sizes of one sample.

    Args:
        frames / height / width: of the video's latents.
        patch: latents per token along height and width.
        audio: latents per channel of the sound.
    """

    frames: int
    height: int
    width: int
    patch: int
    audio: int

    @property
    def tokens_per_frame(self) -> int:
        """Tokens of one latent frame."""
        return (self.height // self.patch) * (self.width // self.patch)


@dataclass(frozen=True)
class MiniMaxH3Folder:
    """Config files of one folder.

    Args:
        path: the folder.
        configs: component -> its config file.
        shift / audio_shift: of the two schedules.
    """

    path: Path
    configs: Mapping[str, Mapping[str, Any]]
    shift: float
    audio_shift: float

    @property
    def transformer(self) -> Mapping[str, Any]:
        """The transformer's config file."""
        return self.configs["transformer"]

    @property
    def text(self) -> Mapping[str, Any]:
        """The language model's part of the text encoder's config file."""
        found: Mapping[str, Any] = self.configs["text_encoder"]["text_config"]
        return found

    @property
    def patch(self) -> tuple[int, int, int]:
        """Latents per token along time, height and width."""
        time, height, width = self.transformer["patch_size"]
        return time, height, width

    @property
    def sample_rate(self) -> int:
        """Hz of the sound."""
        return int(self.configs["audio_vae"]["sampling_rate"])

    def geometry(self, extent: Extent) -> Geometry:
        """Sizes of a sample.

        Raises:
            ConfigError: a side that is no multiple of the patch, a number of frames that is not 17 n + 5, or another
                rate than 24 frames per second.
        """
        pixels = math.prod(self.configs["vae"]["spatial_downsample_factors"])
        check_video_size(self.path, pixels * self.patch[1], extent)
        if extent.frame_rate != FRAME_RATE:
            raise ConfigError(
                f"rollout.frame_rate is {extent.frame_rate:g}; MiniMax-H3 draws {FRAME_RATE:g} frames per second",
                remedy=f"set rollout.frame_rate={FRAME_RATE:g}",
            )
        chunk, kept = int(self.configs["vae"]["clip_length"]), self._latents_per_chunk
        check_frame_count(self.path, chunk, kept, LEAST_FRAMES, extent.num_frames)
        return Geometry(
            frames=(extent.num_frames - kept) // chunk * kept + kept - int(self.configs["vae"].get("token_drop", 0)),
            height=extent.height // pixels,
            width=extent.width // pixels,
            patch=self.patch[1],
            audio=round(extent.num_frames / FRAME_RATE * AUDIO_LATENTS_PER_SECOND),
        )

    def shapes(self, extent: Extent) -> dict[str, tuple[int, ...]]:
        """Stream -> (tokens, channels) of one sample, as the transformer reads them; the sound's channels follow one
        another."""
        geometry = self.geometry(extent)
        return {
            "video": (geometry.frames * geometry.tokens_per_frame, self.token_width),
            "audio": (geometry.audio * STEREO, int(self.transformer["audio_in_channels"])),
        }

    @property
    def token_width(self) -> int:
        """Channels of a video token."""
        return int(self.transformer["in_channels"]) * math.prod(self.patch)

    def attention_requests(self, dtype: str, training: bool) -> list[AttentionRequest]:
        """The transformer attends everywhere within one sample; the language model is causal. The autoencoders keep
        torch's scaled dot product attention and make no request."""
        grouped = self.text.get("num_attention_heads") != self.text.get("num_key_value_heads")
        head_dim = int(self.transformer["attention_head_dim"])
        return [
            AttentionRequest("transformer", dtype, head_dim, backward=training),
            AttentionRequest("text_encoder", dtype, self.text.get("head_dim"), causal=True, grouped_query=grouped),
        ]

    @property
    def _latents_per_chunk(self) -> int:
        """Latent frames of a chunk of `clip_length` frames."""
        return math.ceil(int(self.configs["vae"]["clip_length"]) / self._frames_per_latent)

    @property
    def _frames_per_latent(self) -> int:
        return math.prod(self.configs["vae"]["temporal_downsample_factors"])


def read_folder(path: Path) -> MiniMaxH3Folder:
    """Read and cross-check the config files of a MiniMax-H3 folder in diffusers' modular format.

    Raises:
        ModelError: no such folder, another pipeline or class, a missing file or key, or parts that do not fit together.
    """
    if not path.is_dir():
        raise ModelError(f"the model folder {path} does not exist", remedy=f"set model.path to a folder with a {INDEX}")
    found = read_json(path / INDEX).get("_class_name")
    if found != PIPELINE:
        raise ModelError(
            f"{path / INDEX} describes a {found}, not a {PIPELINE}",
            remedy="set model.family to the family of this folder, or model.path to a folder of this family",
        )
    configs = {name: read_json(path / name / "config.json") for name in CLASSES}
    shifts = [_shift(path, name) for name in ("scheduler", "audio_scheduler")]
    folder = MiniMaxH3Folder(path, configs, *shifts)
    _check_values(folder)
    _cross_check(folder)
    return folder


def _shift(path: Path, name: str) -> float:
    file = path / name / "scheduler_config.json"
    config = read_json(file)
    if config.get("_class_name") != "MiniMaxH3Scheduler":
        raise ModelError(f"{file} describes a {config.get('_class_name')}, not a MiniMaxH3Scheduler")
    shift = config.get("shift", 12.0)
    if isinstance(shift, bool) or not isinstance(shift, int | float) or not shift > 0:
        raise ModelError(f"the model file {file}: 'shift' is {shift!r}, not a number above 0")
    return float(shift)


def _check_values(folder: MiniMaxH3Folder) -> None:
    for name, keys in _NUMBERS.items():
        whole_numbers(folder.path / name / "config.json", folder.configs[name], keys)
    for name, key, positive in (
        ("transformer", "patch_size", True),
        ("vae", "spatial_downsample_factors", True),
        ("vae", "temporal_downsample_factors", True),
        ("audio_vae", "encoder_rates", True),
        ("vae", "latents_mean", False),
        ("vae", "latents_std", False),
        ("audio_vae", "latents_mean", False),
        ("audio_vae", "latents_std", False),
    ):
        number_list(folder.path / name / "config.json", folder.configs[name], key, positive=positive)
    text = folder.configs["text_encoder"].get("text_config")
    if not isinstance(text, dict):
        raise ModelError(f"{folder.path / 'text_encoder' / 'config.json'} has no text_config")
    whole_numbers(
        folder.path / "text_encoder" / "config.json", text, ("hidden_size", "num_hidden_layers", "vocab_size")
    )


def _cross_check(folder: MiniMaxH3Folder) -> None:
    model, vae, audio = folder.transformer, folder.configs["vae"], folder.configs["audio_vae"]
    rate = audio["sampling_rate"] / math.prod(audio["encoder_rates"])
    patch = list(model["patch_size"])
    facts: list[Fact] = [
        (model["in_channels"], vae["latent_channels"], "transformer in_channels", "VAE latent_channels"),
        (model["audio_in_channels"], audio["latent_channels"], "transformer audio_in_channels", "audio VAE channels"),
        (model["text_dim"], folder.text["hidden_size"], "transformer text_dim", "text encoder hidden_size"),
        (patch, [1, *patch[1:2] * 2], "transformer patch_size", "a patch of one frame and equal sides"),
        (rate, AUDIO_LATENTS_PER_SECOND, "the audio VAE's latents per second", "what the transformer was trained with"),
        (len(vae["latents_mean"]), vae["latent_channels"], "the length of latents_mean", "VAE latent_channels"),
        (len(vae["latents_std"]), vae["latent_channels"], "the length of latents_std", "VAE latent_channels"),
        (len(audio["latents_mean"]), audio["latent_channels"], "the length of latents_mean", "audio VAE channels"),
        (len(audio["latents_std"]), audio["latent_channels"], "the length of latents_std", "audio VAE channels"),
    ]
    cross_check(folder.path, facts)


def check_extent(path: Path, extent: Extent) -> None:
    """`ConfigError` for a size, length or frame rate that the folder's model does not draw."""
    read_folder(path).shapes(extent)
