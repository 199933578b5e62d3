"""Stable Diffusion 3 / 3.5 on diffusers' own classes: any folder of a `StableDiffusion3Pipeline`, any of its parts."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from diffusers import AutoencoderKL, SD3Transformer2DModel

from omni_portable.contracts.device import AttentionRequest
from omni_portable.contracts.errors import ConfigError, ModelError
from omni_portable.contracts.media import MediaArtifact
from omni_portable.contracts.model import ModelLoad
from omni_portable.contracts.rollout import Conditioning, Extent, RolloutRequest, Schedule
from omni_portable.models.inputs import image_pixels, require_image
from omni_portable.models.loading import load_diffusers
from omni_portable.models.lora import trainable_named_tensors
from omni_portable.models.sd3 import SD3Options
from omni_portable.models.sd3.attention import apply_to_transformer, apply_to_vae, text_encoder_attention
from omni_portable.models.sd3.folder import T5, read_folder
from omni_portable.models.sd3.layout import rollout_name
from omni_portable.models.sd3.text import T5_ATTENTION, TextEncoders
from omni_portable.samplers.schedule import schedule_from_config

COMPONENTS = ("transformer", "text_encoder", "vae")


class SD3Adapter:
    """One loaded model (see :class:`omni_portable.contracts.model.DiffusionAdapter`).

    Encoders and VAE are frozen; the transformer is left trainable, in evaluation mode (it has no dropout).

    Raises:
        ModelError: a folder that is missing, incomplete, corrupt, of another family, or does not fit together.
        AttentionUnavailable: a kernel that a part cannot use.
    """

    family = "sd3"

    def __init__(self, load: ModelLoad) -> None:
        options = load.options if load.options is not None else SD3Options()
        if not isinstance(options, SD3Options):
            raise ConfigError(f"model.options of family 'sd3' must be SD3Options, got {type(options).__name__}")
        unknown = sorted(set(load.components) - set(COMPONENTS))
        if unknown:
            raise ConfigError(f"SD3 has no component '{unknown[0]}'", choices=COMPONENTS)
        self.folder = read_folder(load.path)
        self.torch_device, self.dtype = load.torch_device, load.dtype
        self.attention_in_use: dict[str, str] = {}
        """Part of the model -> attention kernel it computes with, in its library's spelling."""
        self._transformer = self._load_transformer(load) if "transformer" in load.components else None
        self._text = self._load_text(load, options) if "text_encoder" in load.components else None
        self._vae: Any = self._load_vae(load) if "vae" in load.components else None

    @classmethod
    def attention_requests(cls, path: Path, dtype: str, training: bool) -> list[AttentionRequest]:
        """Needs of each part by its config files; a component comes twice where its models differ in head_dim."""
        return read_folder(path).attention_requests(dtype, training)

    @property
    def transformer(self) -> torch.nn.Module:
        """The policy; `ModelError` where it was not loaded."""
        if self._transformer is None:
            raise self._not_loaded("transformer")
        return self._transformer

    def encode(
        self, prompts: Sequence[str], media: Sequence[Mapping[str, MediaArtifact]] | None, extent: Extent
    ) -> list[Conditioning]:
        """Per prompt 'prompt_embeds' (tokens, joint width) and 'pooled_prompt_embeds' (pooled width), model dtype."""
        if self._text is None:
            raise self._not_loaded("text_encoder")
        if media is not None and any(media):
            raise ConfigError("SD3 takes no input media", remedy="use prompts without media")
        return [self._text.encode(prompt) for prompt in prompts]

    def collate(self, conditionings: Sequence[Conditioning]) -> Conditioning:
        """Stack; all conditionings of one folder and one max_sequence_length have the same shapes."""
        names = list(conditionings[0])
        for other in conditionings[1:]:
            if {n: t.shape for n, t in other.items()} != {n: conditionings[0][n].shape for n in names}:
                raise ModelError("conditionings of different shapes cannot be stacked; encode them with one model")
        return {name: torch.stack([c[name] for c in conditionings]) for name in names}

    def latent_shape(self, extent: Extent) -> tuple[int, ...]:
        """(channels, height / vae scale, width / vae scale); `ConfigError` for a size the model cannot draw."""
        require_image("sd3", extent)
        return self.folder.latent_shape(extent.height, extent.width)

    def latent_streams(self, extent: Extent) -> Mapping[str, tuple[int, int]]:
        """One stream."""
        return {"latents": (0, math.prod(self.latent_shape(extent)))}

    @torch.no_grad()
    def encode_media(self, media: Mapping[str, MediaArtifact], extent: Extent) -> torch.Tensor:
        """Latents of 'image': the mode of the VAE's posterior, shifted and scaled (the inverse of :meth:`decode`)."""
        if self._vae is None:
            raise self._not_loaded("vae")
        pixels = image_pixels(media, "image", extent).to(self.torch_device, self.dtype)
        latents = self._vae.encode(pixels.unsqueeze(0)).latent_dist.mode()[0]
        config = self._vae.config
        return ((latents - (config.shift_factor or 0.0)) * config.scaling_factor).float()

    def initial_latents(self, requests: Sequence[RolloutRequest], noise: torch.Tensor) -> torch.Tensor:
        """Unit noise as it is: SD3 starts from a standard normal whatever the first sigma."""
        if len(requests) != noise.shape[0]:
            raise ModelError(f"{len(requests)} requests, but noise for {noise.shape[0]}")
        return noise.to(device=self.torch_device, dtype=torch.float32)

    def velocity(
        self,
        latents: torch.Tensor,
        timesteps: torch.Tensor,
        conditioning: Conditioning,
        guidance_scale: float,
        negative: Conditioning | None = None,
    ) -> torch.Tensor:
        """Model output (B, C, H, W) fp32; with guidance v = v_neg + g (v_pos - v_neg), both from one forward.

        Raises:
            ModelError: guidance_scale is not 1 and there is no negative conditioning.
        """
        if guidance_scale == 1.0:
            return self._forward(latents, timesteps, conditioning)
        if negative is None:
            raise ModelError(
                f"guidance_scale {guidance_scale} needs the negative prompt's conditioning, which is missing",
                remedy="encode the negative prompt (an empty one counts), or set rollout.guidance_scale to 1",
            )
        both = {name: torch.cat([negative[name], conditioning[name]]) for name in conditioning}
        output = self._forward(torch.cat([latents, latents]), torch.cat([timesteps, timesteps]), both)
        unconditional, conditional = output.chunk(2)
        return unconditional + guidance_scale * (conditional - unconditional)

    @torch.no_grad()
    def decode(self, latents: torch.Tensor, extent: Extent) -> list[dict[str, MediaArtifact]]:
        """Artifact 'image' per sample: uint8 (3, H, W) on the CPU, round(255 clamp(x / 2 + 1/2, 0, 1)).

        Images are decoded one at a time: memory is that of one image, and pixels do not depend on the pack.
        """
        if self._vae is None:
            raise self._not_loaded("vae")
        return [{"image": MediaArtifact("image", "image", self._pixels(row), "CHW")} for row in latents.unbind()]

    def schedule(self, num_steps: int, extent: Extent) -> Schedule:
        """As the folder's scheduler config says, equal to the stock pipeline's (static or dynamic shift)."""
        tokens = self.folder.tokens(extent.height, extent.width)
        return schedule_from_config(self.folder.scheduler, num_steps, tokens=tokens)

    def lora_targets(self) -> tuple[str, ...]:
        """All projections of the joint attention (Flow-GRPO's SD3 recipe)."""
        return (
            "attn.to_q",
            "attn.to_k",
            "attn.to_v",
            "attn.to_out.0",
            "attn.add_q_proj",
            "attn.add_k_proj",
            "attn.add_v_proj",
            "attn.to_add_out",
        )

    def rollout_layout(self, name: str, tensor: torch.Tensor) -> Iterable[tuple[str, torch.Tensor]]:
        """Name in vLLM-Omni's transformer; a shard of a fused tensor is called 'FUSED:q', ':k' or ':v' (layout.py)."""
        target, shard = rollout_name(name)
        yield (f"{target}:{shard}" if shard else target), tensor

    def trainable_tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Canonical name and parameter of everything in the transformer that requires a gradient."""
        return trainable_named_tensors(self.transformer)

    def _forward(self, latents: torch.Tensor, timesteps: torch.Tensor, conditioning: Conditioning) -> torch.Tensor:
        output: torch.Tensor = self.transformer(
            hidden_states=latents.to(self.dtype),
            timestep=timesteps,
            encoder_hidden_states=conditioning["prompt_embeds"].to(latents.device, self.dtype),
            pooled_projections=conditioning["pooled_prompt_embeds"].to(latents.device, self.dtype),
            return_dict=False,
        )[0]
        return output.float()

    def _pixels(self, latents: torch.Tensor) -> torch.Tensor:
        config = self._vae.config
        scaled = latents.to(self.torch_device, self.dtype) / config.scaling_factor + (config.shift_factor or 0.0)
        image = self._vae.decode(scaled.unsqueeze(0), return_dict=False)[0][0]
        return (image * 0.5 + 0.5).clamp(0, 1).float().mul(255).round().to("cpu", torch.uint8)

    def _load_transformer(self, load: ModelLoad) -> torch.nn.Module:
        model = load_diffusers(SD3Transformer2DModel, load.path / "transformer", load.dtype)
        self.attention_in_use["transformer"] = apply_to_transformer(model, load.attention.get("transformer"))
        return model.to(load.torch_device)

    def _load_text(self, load: ModelLoad, options: SD3Options) -> TextEncoders:
        kernel = text_encoder_attention(load.attention.get("text_encoder"))
        text = TextEncoders(self.folder, load.torch_device, load.dtype, options.max_sequence_length, kernel)
        self.attention_in_use |= {name: T5_ATTENTION if name == T5 else kernel for name in text.models}
        return text

    def _load_vae(self, load: ModelLoad) -> torch.nn.Module:
        model = load_diffusers(AutoencoderKL, load.path / "vae", load.dtype)
        self.attention_in_use["vae"] = apply_to_vae(model, load.attention.get("vae"))
        return model.requires_grad_(False).to(load.torch_device)

    def _not_loaded(self, component: str) -> ModelError:
        return ModelError(
            f"the {component} of {self.folder.path} was not loaded",
            remedy=f"add '{component}' to the components asked for",
        )
