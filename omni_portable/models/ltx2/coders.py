"""Videos and sound to latents and back; one sample at a time, so that memory is that of one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from diffusers import AutoencoderKLLTX2Audio, AutoencoderKLLTX2Video
from diffusers.pipelines.ltx2 import vocoder as vocoders

from omni_portable.contracts.media import MediaArtifact
from omni_portable.contracts.model import ModelLoad
from omni_portable.contracts.rollout import Extent
from omni_portable.models.loading import load_diffusers
from omni_portable.models.ltx2.folder import AUDIO_COMPRESSION, LTX2Folder
from omni_portable.models.ltx2.spectrogram import log_mel
from omni_portable.models.video import audio_artifact, audio_samples, fitted_samples, video_artifact, video_pixels


class Coders:
    """The frozen autoencoders of video and sound, and the vocoder."""

    def __init__(self, folder: LTX2Folder, load: ModelLoad) -> None:
        def frozen(cls: Any, name: str) -> Any:
            model = load_diffusers(cls, folder.path / name, load.dtype)
            return model.requires_grad_(False).to(load.torch_device)

        self._folder, self._device, self._dtype = folder, load.torch_device, load.dtype
        self.video = frozen(AutoencoderKLLTX2Video, "vae")
        self.audio = frozen(AutoencoderKLLTX2Audio, "audio_vae")
        self.vocoder = frozen(getattr(vocoders, folder.vocoder), "vocoder")

    def decode(self, latents: Mapping[str, torch.Tensor], extent: Extent) -> dict[str, MediaArtifact]:
        """Artifacts of one sample's streams, (tokens, channels) each."""
        return {
            "video": video_artifact(self._frames(latents["video"], extent), extent.frame_rate),
            "audio": audio_artifact(self._waveform(latents["audio"]), self._folder.output_rate),
        }

    def encode(self, media: Mapping[str, MediaArtifact], extent: Extent) -> dict[str, torch.Tensor]:
        """Streams (tokens, channels) fp32 of 'video' and 'audio'.

        Raises:
            ArtifactError: one that is missing, of another size, or of another sample rate than the spectrograms'.
        """
        return {"video": self._video_latents(media, extent), "audio": self._audio_latents(media, extent)}

    def _frames(self, tokens: torch.Tensor, extent: Extent) -> torch.Tensor:
        """(3, T, H, W) in [0, 1]."""
        frames, height, width = self._folder.grid(extent)
        grid = tokens.view(frames, height, width, -1).permute(3, 0, 1, 2)
        mean, std = (_per_channel(values, grid) for values in (self.video.latents_mean, self.video.latents_std))
        latents = (grid * std / self.video.config.scaling_factor + mean).to(self._device, self._dtype).unsqueeze(0)
        timestep = torch.zeros(1).to(latents) if self.video.config.timestep_conditioning else None
        video: torch.Tensor = self.video.decode(latents, timestep, return_dict=False)[0][0]
        return video * 0.5 + 0.5

    def _waveform(self, tokens: torch.Tensor) -> torch.Tensor:
        """(channels, samples)."""
        scaled = tokens * self.audio.latents_std.to(tokens) + self.audio.latents_mean.to(tokens)
        latents = scaled.unflatten(1, (-1, self._folder.latent_bins)).transpose(0, 1)
        spectrogram = self.audio.decode(latents.to(self._device, self._dtype).unsqueeze(0), return_dict=False)[0]
        waveform: torch.Tensor = self.vocoder(spectrogram)[0]
        return waveform

    def _video_latents(self, media: Mapping[str, MediaArtifact], extent: Extent) -> torch.Tensor:
        pixels = video_pixels(media, "video", extent).to(self._device, self._dtype)
        latents = self.video.encode(pixels.unsqueeze(0)).latent_dist.mode()[0].float()
        mean, std = (_per_channel(values, latents) for values in (self.video.latents_mean, self.video.latents_std))
        normalised: torch.Tensor = (latents - mean) * self.video.config.scaling_factor / std
        return normalised.permute(1, 2, 3, 0).flatten(0, 2)

    def _audio_latents(self, media: Mapping[str, MediaArtifact], extent: Extent) -> torch.Tensor:
        config = self.audio.config
        samples = audio_samples(media, "audio", config.sample_rate, config.in_channels, extent)
        frames = AUDIO_COMPRESSION * (self._folder.audio_frames(extent) - 1) + 1
        fitted = fitted_samples(samples, (frames - 1) * config.mel_hop_length).to(self._device)
        spectrogram = log_mel(fitted, config.sample_rate, config.mel_hop_length, config.mel_bins).to(self._dtype)
        latents = self.audio.encode(spectrogram.unsqueeze(0)).latent_dist.mode()[0].float()
        tokens = latents.transpose(0, 1).flatten(1)
        return (tokens - self.audio.latents_mean.to(tokens)) / self.audio.latents_std.to(tokens)


def _per_channel(values: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """(C,) as (C, 1, 1, 1)."""
    return values.view(-1, 1, 1, 1).to(like)
