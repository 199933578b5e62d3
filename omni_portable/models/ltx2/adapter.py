"""LTX-2 and LTX-2.3 on diffusers' own classes: text to video with sound, both in one flat vector of latents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from diffusers import LTX2VideoTransformer3DModel

from omni_portable.contracts.media import MediaArtifact
from omni_portable.contracts.model import ModelLoad
from omni_portable.contracts.rollout import Conditioning, Extent, Schedule
from omni_portable.models.attention import apply_to_transformer, text_encoder_attention
from omni_portable.models.diffusers_adapter import DiffusersAdapter, family_options
from omni_portable.models.guidance import both_halves, require_negative, twice
from omni_portable.models.guidance_x0 import clean_space_guidance
from omni_portable.models.loading import load_diffusers
from omni_portable.models.ltx2 import LTX2Options
from omni_portable.models.ltx2.coders import Coders
from omni_portable.models.ltx2.folder import read_folder
from omni_portable.models.ltx2.layout import LAYOUT
from omni_portable.models.ltx2.perturbed import perturbations
from omni_portable.models.ltx2.positions import AUDIO, VIDEO, token_positions
from omni_portable.models.ltx2.text import TextEncoder
from omni_portable.models.streams import Shapes, bounds, elements, join, split
from omni_portable.samplers.schedule import schedule_from_config

ATTENTIONS = ("attn1", "attn2", "audio_attn1", "audio_attn2", "audio_to_video_attn", "video_to_audio_attn")


class LTX2Adapter(DiffusersAdapter):
    """One loaded model (see :class:`DiffusersAdapter`); streams 'video' and 'audio' share sigmas and steps."""

    family = "ltx2"
    layout = LAYOUT
    read_folder = staticmethod(read_folder)

    def __init__(self, load: ModelLoad) -> None:
        self.options = family_options(load, LTX2Options, self.family)
        self.folder = read_folder(load.path)
        self._perturbations = perturbations(self.options, self.folder)
        super().__init__(load)

    def encode(
        self, prompts: Sequence[str], media: Sequence[Mapping[str, MediaArtifact]] | None, extent: Extent
    ) -> list[Conditioning]:
        """Per prompt 'prompt_embeds' and 'audio_prompt_embeds' (tokens, width of each stream) in the model's dtype, and
        'video_coords' (3, tokens, 2) and 'audio_coords' (1, tokens, 2) fp32: where the tokens of the extent are."""
        text = self._loaded("text_encoder", self._text)
        self._refuse_media(media)
        positions = token_positions(self.folder, extent, self.torch_device)
        return [text.encode(prompt) | positions for prompt in prompts]

    def latent_shape(self, extent: Extent) -> tuple[int, ...]:
        """(elements,): the video's tokens, then the sound's; `ConfigError` for a size the model cannot draw."""
        return (elements(self.folder.shapes(extent)),)

    def latent_streams(self, extent: Extent) -> Mapping[str, tuple[int, int]]:
        """'video' and 'audio'."""
        return bounds(self.folder.shapes(extent))

    @torch.no_grad()
    def encode_media(self, media: Mapping[str, MediaArtifact], extent: Extent) -> torch.Tensor:
        """Latents of 'video' and 'audio'; the sound has the sample rate of the spectrograms (16 kHz as published), not
        that of the vocoder."""
        coders: Coders = self._loaded("vae", self._vae)
        streams = {name: tokens.unsqueeze(0) for name, tokens in coders.encode(media, extent).items()}
        return join(streams, self.folder.shapes(extent))[0]

    def velocity(
        self,
        latents: torch.Tensor,
        timesteps: torch.Tensor,
        conditioning: Conditioning,
        guidance_scale: float,
        negative: Conditioning | None = None,
    ) -> torch.Tensor:
        """Model output (B, elements) fp32; guidance works on clean samples, per stream (see
        :func:`clean_space_guidance`). Both halves of classifier-free guidance share a forward; spatio-temporal guidance
        and isolation of the streams take one more each, whatever `guidance_scale`."""
        shapes = self._shapes(conditioning)
        sample = split(latents, shapes)
        weaker: dict[str, list[tuple[float, torch.Tensor]]] = {name: [] for name in shapes}

        def compare(weights: Mapping[str, float], predicted: Mapping[str, torch.Tensor]) -> None:
            for name, velocity in predicted.items():
                weaker[name].append((weights[name], velocity))

        if guidance_scale == 1.0:
            positive = self._forward(sample, timesteps, conditioning)
        else:
            both = both_halves(require_negative(negative, guidance_scale), conditioning)
            doubled = {name: twice(tensor) for name, tensor in sample.items()}
            halves = {name: t.chunk(2) for name, t in self._forward(doubled, twice(timesteps), both).items()}
            positive = {name: high for name, (_, high) in halves.items()}
            sound = self.options.audio_guidance_scale or guidance_scale
            weights = {"video": guidance_scale - 1.0, "audio": sound - 1.0}
            compare(weights, {name: low for name, (low, _) in halves.items()})
        for guidance in self._perturbations:
            compare(guidance.weights, self._forward(sample, timesteps, conditioning, guidance.arguments))
        if not any(weaker.values()):
            return join(positive, shapes)
        sigma, rescale = timesteps / self._timestep_scale, self.options.guidance_rescale
        return join(
            {name: clean_space_guidance(sample[name], sigma, positive[name], weaker[name], rescale) for name in shapes},
            shapes,
        )

    @torch.no_grad()
    def decode(self, latents: torch.Tensor, extent: Extent) -> list[dict[str, MediaArtifact]]:
        """Artifacts 'video', uint8 (T, 3, H, W) at the extent's frame rate, and 'audio', fp32 (channels, samples) at
        the vocoder's sample rate, on the CPU."""
        coders: Coders = self._loaded("vae", self._vae)
        streams = split(latents, self.folder.shapes(extent))
        return [
            coders.decode({name: tensor[row] for name, tensor in streams.items()}, extent)
            for row in range(latents.shape[0])
        ]

    def schedule(self, num_steps: int, extent: Extent) -> Schedule:
        """As the folder's scheduler config says, shifted by the video's tokens; equal to the stock pipeline's."""
        tokens = self.folder.shapes(extent)["video"][0]
        return schedule_from_config(self.folder.scheduler, num_steps, tokens=tokens, spacing="uniform")

    def lora_targets(self) -> tuple[str, ...]:
        """All projections of the six attentions and of the feed-forward layers (VeRL-Omni's LTX-2.3 recipes)."""
        attention = tuple(f"{name}.{part}" for name in ATTENTIONS for part in ("to_q", "to_k", "to_v", "to_out.0"))
        return (*attention, "ff.net.0.proj", "ff.net.2", "audio_ff.net.0.proj", "audio_ff.net.2")

    @property
    def _timestep_scale(self) -> float:
        return float(self.folder.transformer["timestep_scale_multiplier"])

    def _shapes(self, conditioning: Conditioning) -> Shapes:
        """Shapes of the streams, from the positions that came with the prompt."""
        config = self.folder.transformer
        return {
            "video": (conditioning[VIDEO].shape[2], int(config["in_channels"])),
            "audio": (conditioning[AUDIO].shape[2], int(config["audio_in_channels"])),
        }

    def _forward(
        self,
        streams: Mapping[str, torch.Tensor],
        timesteps: torch.Tensor,
        conditioning: Conditioning,
        perturbed: Mapping[str, Any] | None = None,
    ) -> dict[str, torch.Tensor]:
        model: Any = self.transformer
        mask = conditioning.get("prompt_mask")
        video, audio = model(
            hidden_states=streams["video"].to(self.dtype),
            audio_hidden_states=streams["audio"].to(self.dtype),
            encoder_hidden_states=conditioning["prompt_embeds"].to(self.dtype),
            audio_encoder_hidden_states=conditioning["audio_prompt_embeds"].to(self.dtype),
            timestep=timesteps,
            sigma=timesteps,
            encoder_attention_mask=mask,
            audio_encoder_attention_mask=mask,
            video_coords=conditioning[VIDEO],
            audio_coords=conditioning[AUDIO],
            return_dict=False,
            **(perturbed or {}),
        )
        return {"video": video.float(), "audio": audio.float()}

    def _load_transformer(self, load: ModelLoad) -> torch.nn.Module:
        model = load_diffusers(LTX2VideoTransformer3DModel, load.path / "transformer", load.dtype)
        self.attention_in_use["transformer"] = apply_to_transformer(model, load.attention.get("transformer"))
        return model.to(load.torch_device)

    def _load_text(self, load: ModelLoad) -> TextEncoder:
        kernel = text_encoder_attention(load.attention.get("text_encoder"))
        self.attention_in_use["text_encoder"] = kernel
        return TextEncoder(self.folder, load, self.options.max_sequence_length, kernel)

    def _load_vae(self, load: ModelLoad) -> Coders:
        return Coders(self.folder, load)
