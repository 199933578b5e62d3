"""What text-to-image families with `AutoencoderKL` and prompts of a fixed length have in common (SD3, FLUX)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from omni_portable.contracts.media import MediaArtifact
from omni_portable.contracts.model import ModelLoad
from omni_portable.contracts.rollout import Conditioning, Extent
from omni_portable.models.guidance import both_halves, linear_guidance, twice
from omni_portable.models.image_adapter import ImageAdapter
from omni_portable.models.image_vae import kl_decode, kl_encode, load_kl_vae

JOINT_ATTENTION_TARGETS = (
    "attn.to_q",
    "attn.to_k",
    "attn.to_v",
    "attn.to_out.0",
    "attn.add_q_proj",
    "attn.add_k_proj",
    "attn.add_v_proj",
    "attn.to_add_out",
)
"""LoRA targets: all projections of attention over two streams of tokens, in diffusers' names."""


class KLImageAdapter(ImageAdapter):
    """See :class:`ImageAdapter`."""

    def encode(
        self, prompts: Sequence[str], media: Sequence[Mapping[str, MediaArtifact]] | None, extent: Extent
    ) -> list[Conditioning]:
        """Per prompt 'prompt_embeds' (tokens, joint width) and 'pooled_prompt_embeds' (pooled width), model dtype."""
        text = self._loaded("text_encoder", self._text)
        self._refuse_media(media)
        return [text.encode(prompt) for prompt in prompts]

    def _guided(
        self, latents: torch.Tensor, timesteps: torch.Tensor, both: tuple[Conditioning, Conditioning], scale: float
    ) -> torch.Tensor:
        """v = v_neg + g (v_pos - v_neg)."""
        negative, positive = self._forward(twice(latents), twice(timesteps), both_halves(*both)).chunk(2)
        return linear_guidance(negative, positive, scale)

    def _encode_pixels(self, vae: Any, pixels: torch.Tensor) -> torch.Tensor:
        return kl_encode(vae, pixels)

    def _decode_latents(self, vae: Any, latents: torch.Tensor) -> Iterable[torch.Tensor]:
        return kl_decode(vae, latents)

    def _load_vae(self, load: ModelLoad) -> torch.nn.Module:
        model, self.attention_in_use["vae"] = load_kl_vae(load)
        return model
