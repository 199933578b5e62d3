"""What Qwen-Image and Qwen-Image-Edit have in common: transformer, autoencoder, schedule, and prompts of any length."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

import torch
from diffusers import QwenImageTransformer2DModel

from omni_portable.contracts.model import ModelLoad
from omni_portable.contracts.rollout import Conditioning
from omni_portable.models.attention import apply_to_transformer
from omni_portable.models.diffusers_folder import SIDE
from omni_portable.models.guidance import norm_keeping_guidance, twice
from omni_portable.models.image_adapter import ImageAdapter
from omni_portable.models.loading import load_diffusers
from omni_portable.models.packing import pack, unpack
from omni_portable.models.padding import join_padded, stack_padded
from omni_portable.models.qwen_image.layout import LAYOUT
from omni_portable.models.qwen_image.vae import decode_images, encode_image, load_vae

TIMESTEPS = 1000.0
"""The transformer takes timestep / 1000."""
Grid = tuple[int, int, int]
"""Frames, rows and columns of tokens of one image."""


class QwenImageBase(ImageAdapter):
    """See :class:`ImageAdapter`; canonical latents are unpacked."""

    layout = LAYOUT
    spacing = "uniform"
    padded: ClassVar[tuple[str, ...]] = ("prompt_embeds",)
    """Tensors of a conditioning whose length differs between prompts; the mask is of the first."""

    def collate(self, conditionings: Sequence[Conditioning]) -> Conditioning:
        """Stack, prompts padded to the longest; 'prompt_mask' (B, tokens) bool comes with them where any is padded."""
        return stack_padded(conditionings, self.padded, "prompt_mask")

    def lora_targets(self) -> tuple[str, ...]:
        """All projections of the joint attention and both feed-forwards (VeRL-Omni's Qwen-Image recipes)."""
        return (
            "to_q",
            "to_k",
            "to_v",
            "to_out.0",
            "add_q_proj",
            "add_k_proj",
            "add_v_proj",
            "to_add_out",
            "img_mlp.net.0.proj",
            "img_mlp.net.2",
            "txt_mlp.net.0.proj",
            "txt_mlp.net.2",
        )

    def _forward(self, latents: torch.Tensor, timesteps: torch.Tensor, conditioning: Conditioning) -> torch.Tensor:
        height, width = latents.shape[-2:]
        return unpack(self._packed(pack(latents), timesteps, conditioning, height, width), height, width)

    def _guided(
        self, latents: torch.Tensor, timesteps: torch.Tensor, both: tuple[Conditioning, Conditioning], scale: float
    ) -> torch.Tensor:
        """Guidance that keeps the norm of each packed token."""
        height, width = latents.shape[-2:]
        joined = join_padded(*both, self.padded, "prompt_mask")
        output = self._packed(twice(pack(latents)), twice(timesteps), joined, height, width)
        negative, positive = output.chunk(2)
        return unpack(norm_keeping_guidance(negative, positive, scale), height, width)

    def _packed(
        self, tokens: torch.Tensor, timesteps: torch.Tensor, conditioning: Conditioning, height: int, width: int
    ) -> torch.Tensor:
        """Velocity (B, N, 4 C) fp32 of packed latents that are height x width when unpacked."""
        grid = (1, height // SIDE, width // SIDE)
        return self._transform(tokens, timesteps, conditioning, [[grid]] * len(tokens))

    def _transform(
        self, tokens: torch.Tensor, timesteps: torch.Tensor, conditioning: Conditioning, grids: list[list[Grid]]
    ) -> torch.Tensor:
        """One forward; `grids` lists the images of each row, and must be the same for all of them."""
        mask = conditioning.get("prompt_mask")
        output: torch.Tensor = self.transformer(
            hidden_states=tokens.to(self.dtype),
            timestep=timesteps.to(self.dtype) / TIMESTEPS,
            encoder_hidden_states=conditioning["prompt_embeds"].to(tokens.device, self.dtype),
            encoder_hidden_states_mask=None if mask is None else mask.to(tokens.device),
            img_shapes=grids,
            return_dict=False,
        )[0]
        return output.float()

    def _encode_pixels(self, vae: Any, pixels: torch.Tensor) -> torch.Tensor:
        return encode_image(vae, pixels)

    def _decode_latents(self, vae: Any, latents: torch.Tensor) -> Iterable[torch.Tensor]:
        return decode_images(vae, latents)

    def _load_transformer(self, load: ModelLoad) -> torch.nn.Module:
        model = load_diffusers(QwenImageTransformer2DModel, load.path / "transformer", load.dtype)
        self.attention_in_use["transformer"] = apply_to_transformer(model, load.attention.get("transformer"))
        return model.to(load.torch_device)

    def _load_vae(self, load: ModelLoad) -> torch.nn.Module:
        model, self.attention_in_use["vae"] = load_vae(load)
        return model
