"""Videos, given frames and sound to latents and back; one sample at a time, so that memory is that of one."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import torch
from diffusers import AutoencoderKLMiniMaxH3, AutoencoderKLMiniMaxH3Audio
from diffusers.modular_pipelines.minimax_h3.before_denoise import patchify_video_latents
from diffusers.modular_pipelines.minimax_h3.encoders import encode_vae_condition

from omni_portable.contracts.media import MediaArtifact
from omni_portable.contracts.model import ModelLoad
from omni_portable.contracts.rollout import Extent
from omni_portable.models.attention import fixed_vae_attention
from omni_portable.models.loading import load_diffusers
from omni_portable.models.minimax_h3.folder import STEREO, Geometry, MiniMaxH3Folder
from omni_portable.models.minimax_h3.packing import KEYFRAME_TIME
from omni_portable.models.video import audio_artifact, audio_samples, fitted_samples, video_artifact, video_pixels
from omni_portable.samplers.noise import noise_seed, normal

PIXEL_MEAN, PIXEL_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""Of the video autoencoder's pixels, per channel, over [0, 1]."""
KEYFRAME_SEED = 42
"""Seed under which a given frame's posterior is sampled, and its trace of noise drawn, whatever the request's seed."""


class Coders:
    """The frozen autoencoders of video and sound; both keep fp32 weights whatever the model's dtype."""

    def __init__(self, folder: MiniMaxH3Folder, load: ModelLoad) -> None:
        def frozen(cls: Any, name: str) -> Any:
            with warnings.catch_warnings():  # the library normalises weights in a way that torch will drop one day
                warnings.simplefilter("ignore", FutureWarning)
                model = load_diffusers(cls, folder.path / name, load.dtype)
            return model.requires_grad_(False).to(load.torch_device)

        self._folder, self._device = folder, load.torch_device
        self.video = frozen(AutoencoderKLMiniMaxH3, "vae")
        self.audio = frozen(AutoencoderKLMiniMaxH3Audio, "audio_vae")
        self.kernel = fixed_vae_attention(self.video, load.attention.get("vae"))

    @torch.no_grad()
    def keyframe(self, frame: torch.Tensor, anchor: str) -> torch.Tensor:
        """Rows (tokens of a frame, channels) fp32 of a given frame, uint8 (3, H, W), with the trace of noise that the
        model expects; the noise belongs to the anchor, so that all samples of a prompt are given the same."""
        pixels = frame.to(self._device)[None, :, None]
        latents = encode_vae_condition(self.video, pixels, PIXEL_MEAN, PIXEL_STD, KEYFRAME_SEED)
        noise = normal(noise_seed(KEYFRAME_SEED, anchor, 0, 0, "keyframe"), latents.shape)
        noised = KEYFRAME_TIME * latents + (1.0 - KEYFRAME_TIME) * noise
        return self._rows(noised)

    def decode(self, latents: Mapping[str, torch.Tensor], extent: Extent) -> dict[str, MediaArtifact]:
        """Artifacts of one sample's streams, (tokens, channels) each, in the autoencoders' own scale."""
        geometry = self._folder.geometry(extent)
        return {
            "video": video_artifact(self._frames(latents["video"], geometry), extent.frame_rate),
            "audio": audio_artifact(self._waveform(latents["audio"], geometry), self._folder.sample_rate),
        }

    def encode(self, media: Mapping[str, MediaArtifact], extent: Extent) -> dict[str, torch.Tensor]:
        """Streams (tokens, channels) fp32 of 'video' and 'audio': modes of the posteriors, normalised.

        Raises:
            ArtifactError: one that is missing, of another size, or of another sample rate.
        """
        mean, std = _per_channel((PIXEL_MEAN, PIXEL_STD), 5)
        pixels = (video_pixels(media, "video", extent).unsqueeze(0) * 0.5 + 0.5 - mean) / std
        video = self.video.encode(pixels.to(self._device)).latent_dist.mode().float().cpu()
        mean, std = _statistics(self.video, 5)
        samples = audio_samples(media, "audio", self._folder.sample_rate, STEREO, extent)
        count = self._folder.geometry(extent).audio * self.audio.hop_length
        fitted = fitted_samples(samples, count).unsqueeze(1).to(self._device)
        audio = self.audio.encode(fitted).latent_dist.mode().float().cpu()
        audio_mean, audio_std = _statistics(self.audio, 3)
        return {
            "video": self._rows((video - mean) / std),
            "audio": ((audio - audio_mean) / audio_std).transpose(1, 2).flatten(0, 1),
        }

    def _rows(self, latents: torch.Tensor) -> torch.Tensor:
        """(1, C, T, H, W) -> (tokens, channels)."""
        rows: torch.Tensor = patchify_video_latents(latents, self._folder.patch)
        return rows

    def _frames(self, rows: torch.Tensor, geometry: Geometry) -> torch.Tensor:
        """(3, T, H, W) in [0, 1]."""
        patch = geometry.patch
        grid = rows.view(
            geometry.frames, geometry.height // patch, geometry.width // patch, -1, patch, patch
        )  # (T, H, W, C, rows, columns)
        latents = grid.permute(3, 0, 1, 4, 2, 5).flatten(2, 3).flatten(3, 4).unsqueeze(0)
        mean, std = _statistics(self.video, 5)
        scaled = latents * std.to(latents) + mean.to(latents)
        video = self.video.decode(scaled.to(self._device), return_dict=False)[0].float()
        mean, std = _per_channel((PIXEL_MEAN, PIXEL_STD), 5)
        pixels: torch.Tensor = (video * std.to(video) + mean.to(video))[0]
        return pixels

    def _waveform(self, rows: torch.Tensor, geometry: Geometry) -> torch.Tensor:
        """(2, samples)."""
        latents = rows.view(STEREO, geometry.audio, -1).transpose(1, 2)
        mean, std = _statistics(self.audio, 3)
        scaled = latents * std.to(latents) + mean.to(latents)
        waveform: torch.Tensor = self.audio.decode(scaled.to(self._device), return_dict=False)[0]
        return waveform.squeeze(1)


def _statistics(vae: Any, dims: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean and standard deviation of an autoencoder's latents per channel, (1, C, 1, ...)."""
    return _per_channel((vae.config.latents_mean, vae.config.latents_std), dims)


def _per_channel(values: tuple[Any, Any], dims: int) -> tuple[torch.Tensor, torch.Tensor]:
    mean, std = (torch.tensor(each).view(1, -1, *[1] * (dims - 2)) for each in values)
    return mean, std
