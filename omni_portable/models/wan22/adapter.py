"""Wan 2.2 on diffusers' own classes: text to video, first frame to video, one transformer or two experts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from diffusers import WanTransformer3DModel

from omni_portable.contracts.errors import ArtifactError, ConfigError
from omni_portable.contracts.media import MediaArtifact
from omni_portable.contracts.model import ModelLoad
from omni_portable.contracts.rollout import Conditioning, Extent, Schedule
from omni_portable.models.attention import apply_to_transformer
from omni_portable.models.diffusers_adapter import DiffusersAdapter, family_options
from omni_portable.models.guidance import both_halves, linear_guidance, require_negative, twice
from omni_portable.models.loading import load_diffusers
from omni_portable.models.text_encoding import T5_ATTENTION
from omni_portable.models.video import video_artifact, video_pixels
from omni_portable.models.wan22 import Wan22Options
from omni_portable.models.wan22.condition import frame_condition
from omni_portable.models.wan22.experts import HIGH_NOISE, LOW_NOISE, TRAINED, Experts
from omni_portable.models.wan22.first_frame import encoded_frame, no_frame, token_timesteps, towards_frame, with_frame
from omni_portable.models.wan22.folder import TRAIN_TIMESTEPS, read_folder
from omni_portable.models.wan22.layout import LAYOUT
from omni_portable.models.wan22.schedule import folder_shift, wan_schedule
from omni_portable.models.wan22.text import TextEncoder
from omni_portable.models.wan22.vae import load_wan_vae, wan_decode, wan_encode


class Wan22Adapter(DiffusersAdapter):
    """One loaded model (see :class:`DiffusersAdapter`).

    With two experts the policy is one module that holds both; a row's timestep decides which of them works on it.
    """

    family = "wan22"
    layout = LAYOUT
    read_folder = staticmethod(read_folder)

    def __init__(self, load: ModelLoad) -> None:
        self.options = family_options(load, Wan22Options, self.family)
        self.folder = read_folder(load.path)
        if len(self.folder.experts) == 1 and self.options.trained_expert != "both":
            raise ConfigError(
                f"model.options.trained_expert is '{self.options.trained_expert}', but {load.path} has one transformer",
                remedy="leave it out",
            )
        super().__init__(load)

    def encode(
        self, prompts: Sequence[str], media: Sequence[Mapping[str, MediaArtifact]] | None, extent: Extent
    ) -> list[Conditioning]:
        """Per prompt 'prompt_embeds' (tokens, text width); of models that start from an image 'condition'
        (channels, T, H, W) fp32, and of models with a timestep per token what `first_frame` says of a frame that may be
        given.

        Raises:
            ArtifactError: a model that starts from an image was given none, or one of another size.
            ConfigError: media for a model that draws from text alone.
        """
        text = self._loaded("text_encoder", self._text)
        found: list[Conditioning] = [text.encode(prompt) for prompt in prompts]
        if self.folder.per_token_timesteps:
            frames = media if media is not None else [{}] * len(prompts)
            return [one | self._first_frame(named, extent) for one, named in zip(found, frames, strict=True)]
        if not self.folder.from_image:
            if media is not None and any(media):
                raise ConfigError(
                    f"{self.path} draws from text alone; a frame cannot be given to it",
                    remedy="use a folder of a WanImageToVideoPipeline, or prompts without media",
                )
            return found
        if media is None or len(media) != len(prompts):
            raise ArtifactError(f"{self.path} starts from an image: every prompt needs a 'first_frame'")
        for conditioning, given in zip(found, media, strict=True):
            conditioning["condition"] = self._condition(given, extent)
        return found

    def latent_shape(self, extent: Extent) -> tuple[int, ...]:
        """(channels, frames, height, width); `ConfigError` for a size the model cannot draw."""
        return self.folder.latent_shape(extent)

    @torch.no_grad()
    def encode_media(self, media: Mapping[str, MediaArtifact], extent: Extent) -> torch.Tensor:
        """Normalised latents of 'video' (the inverse of :meth:`decode`)."""
        vae = self._loaded("vae", self._vae)
        return wan_encode(vae, video_pixels(media, "video", extent))

    def velocity(
        self,
        latents: torch.Tensor,
        timesteps: torch.Tensor,
        conditioning: Conditioning,
        guidance_scale: float,
        negative: Conditioning | None = None,
    ) -> torch.Tensor:
        """Model output (B, C, T, H, W) fp32; with guidance v = v_neg + g (v_pos - v_neg), both from one forward.

        Rows above the boundary go through the high-noise expert, the others through the low-noise one, each with its
        own guidance scale; rows of one expert share a forward. Given first frames of a model with a timestep per token
        move towards what is given (see `first_frame`).
        """
        found = self._of_experts(latents, timesteps, conditioning, guidance_scale, negative)
        if not self.folder.per_token_timesteps:
            return found
        return towards_frame(found, latents, timesteps / TRAIN_TIMESTEPS, conditioning)

    @torch.no_grad()
    def decode(self, latents: torch.Tensor, extent: Extent) -> list[dict[str, MediaArtifact]]:
        """Artifact 'video' per sample: uint8 (T, 3, H, W) on the CPU at the extent's frame rate."""
        vae = self._loaded("vae", self._vae)
        return [{"video": video_artifact(wan_decode(vae, row), extent.frame_rate)} for row in latents.unbind()]

    def _of_experts(
        self,
        latents: torch.Tensor,
        timesteps: torch.Tensor,
        conditioning: Conditioning,
        guidance_scale: float,
        negative: Conditioning | None,
    ) -> torch.Tensor:
        parts = self._rows_of_experts(timesteps)
        if len(parts) == 1:
            expert, _ = parts[0]
            return self._guided(expert, latents, timesteps, conditioning, guidance_scale, negative)
        outputs, order = [], []
        for expert, rows in parts:
            own = {name: tensor[rows] for name, tensor in conditioning.items()}
            against = None if negative is None else {name: tensor[rows] for name, tensor in negative.items()}
            outputs.append(self._guided(expert, latents[rows], timesteps[rows], own, guidance_scale, against))
            order.append(rows)
        return torch.cat(outputs)[torch.argsort(torch.cat(order))]

    def schedule(self, num_steps: int, extent: Extent) -> Schedule:
        """Shifted even spacing (see :func:`wan_schedule`), with the option's shift or the folder's."""
        self.latent_shape(extent)
        return wan_schedule(num_steps, self.options.shift or folder_shift(self.folder.scheduler))

    def lora_targets(self) -> tuple[str, ...]:
        """All projections of self- and cross-attention and of the feed-forward layers, of the experts that train."""
        attention = tuple(
            f"{module}.{projection}"
            for module in ("attn1", "attn2")
            for projection in ("to_q", "to_k", "to_v", "to_out.0")
        )
        suffixes = (*attention, "ffn.net.0.proj", "ffn.net.2")
        module = self.transformer
        return module.linear_layers(suffixes) if isinstance(module, Experts) else suffixes

    def _rows_of_experts(self, timesteps: torch.Tensor) -> list[tuple[str, torch.Tensor]]:
        """Expert and its rows, experts without rows left out; one entry where one expert has them all."""
        if self.folder.boundary_ratio is None:
            return [(HIGH_NOISE, torch.arange(timesteps.shape[0]))]
        high = (timesteps >= self.folder.boundary_ratio * TRAIN_TIMESTEPS).to("cpu")
        parts = [(HIGH_NOISE, high.nonzero().flatten()), (LOW_NOISE, (~high).nonzero().flatten())]
        return [(expert, rows.to(timesteps.device)) for expert, rows in parts if rows.numel()]

    def _guided(
        self,
        expert: str,
        latents: torch.Tensor,
        timesteps: torch.Tensor,
        conditioning: Conditioning,
        guidance_scale: float,
        negative: Conditioning | None,
    ) -> torch.Tensor:
        if guidance_scale == 1.0:
            return self._forward(expert, latents, timesteps, conditioning)
        both = both_halves(require_negative(negative, guidance_scale), conditioning)
        low, high = self._forward(expert, twice(latents), twice(timesteps), both).chunk(2)
        own = self.options.low_noise_guidance_scale if expert == LOW_NOISE else 0.0
        return linear_guidance(low, high, own or guidance_scale)

    def _forward(
        self, expert: str, latents: torch.Tensor, timesteps: torch.Tensor, conditioning: Conditioning
    ) -> torch.Tensor:
        model: Any = self.transformer
        if self.folder.per_token_timesteps:
            patch, frames = self.folder.patch, latents.shape[2]
            tokens = latents[0, 0].numel() // (patch[0] * patch[1] * patch[2])
            timesteps = token_timesteps(timesteps, conditioning, tokens, tokens // (frames // patch[0]))
            latents = with_frame(latents, conditioning)
        if "condition" in conditioning:
            latents = torch.cat([latents, conditioning["condition"].to(latents)], dim=1)
        inputs = {
            "hidden_states": latents.to(self.dtype),
            "timestep": timesteps,
            "encoder_hidden_states": conditioning["prompt_embeds"].to(latents.device, self.dtype),
        }
        if isinstance(model, Experts):
            return model(expert, **inputs).float()
        output: torch.Tensor = model(**inputs, return_dict=False)[0]
        return output.float()

    @torch.no_grad()
    def _condition(self, media: Mapping[str, MediaArtifact], extent: Extent) -> torch.Tensor:
        self.latent_shape(extent)
        return frame_condition(self._loaded("vae", self._vae), media, extent, self.folder.frames_per_latent)

    @torch.no_grad()
    def _first_frame(self, media: Mapping[str, MediaArtifact], extent: Extent) -> Conditioning:
        shape = self.latent_shape(extent)
        if not media:
            return no_frame(shape, self.torch_device)
        return encoded_frame(self._loaded("vae", self._vae), media, extent)

    def _load_transformer(self, load: ModelLoad) -> torch.nn.Module:
        models = []
        for name in self.folder.experts:
            model = load_diffusers(WanTransformer3DModel, load.path / name, load.dtype)
            self.attention_in_use[name] = apply_to_transformer(model, load.attention.get("transformer"))
            models.append(model.to(load.torch_device))
        if len(models) == 1:
            return models[0]
        return Experts(models[0], models[1], TRAINED[self.options.trained_expert]).eval()

    def _load_text(self, load: ModelLoad) -> TextEncoder:
        self.attention_in_use["text_encoder"] = T5_ATTENTION
        return TextEncoder(self.folder, load, self.options.max_sequence_length)

    def _load_vae(self, load: ModelLoad) -> torch.nn.Module:
        model, self.attention_in_use["vae"] = load_wan_vae(load)
        return model
