"""What an LTX-2 folder's config files say, read and cross-checked before any weights load."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omni_portable.contracts.device import AttentionRequest
from omni_portable.contracts.errors import ConfigError, ModelError
from omni_portable.contracts.rollout import Extent
from omni_portable.models.diffusers_folder import (
    Fact,
    check_frame_count,
    check_video_size,
    cross_check,
    number_list,
    read_configs,
    read_scheduler,
)
from omni_portable.models.folders import component_class, read_json, whole_numbers

PIPELINE = "LTX2Pipeline"
CLASSES = {
    "transformer": "LTX2VideoTransformer3DModel",
    "text_encoder": "Gemma3ForConditionalGeneration",
    "connectors": "LTX2TextConnectors",
    "vae": "AutoencoderKLLTX2Video",
    "audio_vae": "AutoencoderKLLTX2Audio",
}
VOCODERS = ("LTX2Vocoder", "LTX2VocoderWithBWE")
AUDIO_COMPRESSION = 4
"""Spectrogram frames and bins per audio latent, along each axis."""

_NUMBERS = {
    "transformer": (
        "in_channels",
        "out_channels",
        "num_layers",
        "attention_head_dim",
        "audio_in_channels",
        "audio_attention_head_dim",
        "cross_attention_dim",
        "audio_cross_attention_dim",
        "audio_sampling_rate",
        "audio_hop_length",
        "timestep_scale_multiplier",
    ),
    "connectors": ("caption_channels", "text_proj_in_factor"),
    "vae": ("latent_channels",),
    "audio_vae": ("latent_channels", "sample_rate", "mel_hop_length", "mel_bins"),
    "vocoder": ("output_sampling_rate",),
}


@dataclass(frozen=True)
class LTX2Folder:
    """Config files of one folder.

    Args:
        path: the folder.
        configs: component -> its config file.
        scheduler: its config file.
        vocoder: class of the vocoder.
    """

    path: Path
    configs: Mapping[str, Mapping[str, Any]]
    scheduler: Mapping[str, Any]
    vocoder: str

    @property
    def transformer(self) -> Mapping[str, Any]:
        """The transformer's config file."""
        return self.configs["transformer"]

    @property
    def registers(self) -> int:
        """Learned tokens that fill the connectors' padding, of which the text must be a multiple; 1 without them."""
        return int(self.configs["connectors"].get("video_connector_num_learnable_registers") or 1)

    @property
    def latent_bins(self) -> int:
        """Frequency bins of an audio latent."""
        return int(self.configs["audio_vae"]["mel_bins"]) // AUDIO_COMPRESSION

    @property
    def output_rate(self) -> int:
        """Hz of the sound that the model makes."""
        return int(self.configs["vocoder"]["output_sampling_rate"])

    def grid(self, extent: Extent) -> tuple[int, int, int]:
        """(frames, height, width) of the video's latents.

        Raises:
            ConfigError: a side that is no multiple of 32 pixels, a number of frames that is not 8 n + 1, or no rate.
        """
        time, height, width = self.transformer["vae_scale_factors"]
        check_video_size(self.path, height, extent)
        check_frame_count(self.path, time, 1, 1, extent.num_frames)
        return (extent.num_frames - 1) // time + 1, extent.height // height, extent.width // width

    def audio_frames(self, extent: Extent) -> int:
        """Audio latents that cover the video.

        Raises:
            ConfigError: a video so short that its sound has no latent.
        """
        audio = self.configs["audio_vae"]
        rate = float(audio["sample_rate"]) / float(audio["mel_hop_length"]) / AUDIO_COMPRESSION
        count = round(extent.num_frames / extent.frame_rate * rate)
        if count < 1:
            raise ConfigError(
                f"a video of {extent.num_frames} frames at {extent.frame_rate:g} per second is too short for sound",
                remedy="set rollout.num_frames higher or rollout.frame_rate lower",
            )
        return count

    def shapes(self, extent: Extent) -> dict[str, tuple[int, ...]]:
        """Stream -> (tokens, channels) of one sample, as the transformer reads them."""
        frames, height, width = self.grid(extent)
        bins = self.latent_bins * int(self.configs["audio_vae"]["latent_channels"])
        return {
            "video": (frames * height * width, int(self.transformer["in_channels"])),
            "audio": (self.audio_frames(extent), bins),
        }

    def attention_requests(self, dtype: str, training: bool) -> list[AttentionRequest]:
        """The transformer comes once per head_dim (video and cross-modal attention, audio attention); Gemma attends
        with a dense mask. Both VAEs and the vocoder have no attention."""
        dims = [int(self.transformer[key]) for key in ("attention_head_dim", "audio_attention_head_dim")]
        requests = [AttentionRequest("transformer", dtype, dim, backward=training) for dim in dims]
        text = self.configs["text_encoder"].get("text_config", {})
        requests.append(
            AttentionRequest("text_encoder", dtype, text.get("head_dim"), mask="dense", causal=True, grouped_query=True)
        )
        return list(dict.fromkeys(requests))


def read_folder(path: Path) -> LTX2Folder:
    """Read and cross-check the config files of a diffusers LTX-2 folder.

    Raises:
        ModelError: no such folder, another pipeline, a missing file or key, a decoder that draws noise, or parts that
            do not fit together.
    """
    configs = read_configs(path, PIPELINE, CLASSES)
    vocoder = str(component_class(read_json(path / "model_index.json"), "vocoder"))
    if vocoder not in VOCODERS:
        raise ModelError(f"{path / 'model_index.json'} lists 'vocoder' as {vocoder}", choices=VOCODERS)
    configs["vocoder"] = read_json(path / "vocoder" / "config.json")
    folder = LTX2Folder(path, configs, read_scheduler(path), vocoder)
    _check_values(folder)
    _cross_check(folder)
    return folder


def _check_values(folder: LTX2Folder) -> None:
    for name, keys in _NUMBERS.items():
        whole_numbers(folder.path / name / "config.json", folder.configs[name], keys)
    path = folder.path / "transformer" / "config.json"
    number_list(path, folder.transformer, "vae_scale_factors")
    if len(folder.transformer["vae_scale_factors"]) != 3:
        raise ModelError(f"{path}: 'vae_scale_factors' does not have three numbers")
    for key in ("patch_size", "patch_size_t", "audio_patch_size", "audio_patch_size_t"):
        if folder.transformer.get(key, 1) != 1:
            raise ModelError(f"{path}: '{key}' is {folder.transformer[key]}; this family runs patches of one latent")
    noise = folder.configs["vae"].get("decoder_inject_noise")
    if noise is True or (isinstance(noise, list) and any(noise)):
        raise ModelError(f"{folder.path / 'vae' / 'config.json'}: 'decoder_inject_noise' makes decoding random")


def _cross_check(folder: LTX2Folder) -> None:
    model, vae, audio = folder.transformer, folder.configs["vae"], folder.configs["audio_vae"]
    time, side, _ = model["vae_scale_factors"]
    facts: list[Fact] = [
        (model["in_channels"], vae["latent_channels"], "transformer in_channels", "VAE latent_channels"),
        (model["in_channels"], model["out_channels"], "transformer in_channels", "transformer out_channels"),
        (
            vae.get("spatial_compression_ratio") or side,
            side,
            "VAE spatial_compression_ratio",
            "what the transformer has",
        ),
        (
            vae.get("temporal_compression_ratio") or time,
            time,
            "VAE temporal_compression_ratio",
            "what the transformer has",
        ),
        (
            model["audio_in_channels"],
            folder.latent_bins * audio["latent_channels"],
            "transformer audio_in_channels",
            "the audio VAE's latent bins and channels",
        ),
        (
            model["audio_sampling_rate"],
            audio["sample_rate"],
            "transformer audio_sampling_rate",
            "audio VAE sample_rate",
        ),
        (
            model["audio_hop_length"],
            audio["mel_hop_length"],
            "transformer audio_hop_length",
            "audio VAE mel_hop_length",
        ),
    ]
    cross_check(folder.path, facts)


def check_extent(path: Path, extent: Extent) -> None:
    """`ConfigError` for a size, length or frame rate that the folder's model does not draw."""
    read_folder(path).shapes(extent)
