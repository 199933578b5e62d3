"""FLUX.1 on diffusers' own classes: any folder of a `FluxPipeline`, any of its parts."""

from __future__ import annotations

import torch
from diffusers import FluxTransformer2DModel

from omni_portable.contracts.model import ModelLoad
from omni_portable.contracts.rollout import Conditioning
from omni_portable.models.attention import apply_to_transformer, text_encoder_attention
from omni_portable.models.diffusers_folder import SIDE
from omni_portable.models.flux import FluxOptions
from omni_portable.models.flux.folder import read_folder
from omni_portable.models.flux.text import TextEncoders
from omni_portable.models.fused_layout import JOINT_ATTENTION
from omni_portable.models.kl_image_adapter import JOINT_ATTENTION_TARGETS, KLImageAdapter
from omni_portable.models.loading import load_diffusers
from omni_portable.models.packing import pack, unpack
from omni_portable.models.text_encoding import T5_ATTENTION

TIMESTEPS = 1000.0
"""The transformer takes timestep / 1000."""


class FluxAdapter(KLImageAdapter):
    """See :class:`KLImageAdapter`; canonical latents are unpacked.

    The layout is that of `FluxTransformer2DModel.load_weights` of vLLM-Omni 0.30.
    """

    family = "flux"
    layout = JOINT_ATTENTION
    options_type = FluxOptions
    spacing = "uniform"
    read_folder = staticmethod(read_folder)

    def lora_targets(self) -> tuple[str, ...]:
        """Projections of all attention layers, and the feed-forwards of the joint blocks (flow_grpo's FLUX recipe)."""
        feed_forwards = ("ff.net.0.proj", "ff.net.2", "ff_context.net.0.proj", "ff_context.net.2")
        return (*JOINT_ATTENTION_TARGETS, *feed_forwards)

    def _forward(self, latents: torch.Tensor, timesteps: torch.Tensor, conditioning: Conditioning) -> torch.Tensor:
        height, width = latents.shape[-2:]
        device, text = latents.device, conditioning["prompt_embeds"]
        guidance = torch.full((len(latents),), self._options.guidance_embedding, device=device)
        output = self.transformer(
            hidden_states=pack(latents).to(self.dtype),
            timestep=timesteps.to(self.dtype) / TIMESTEPS,
            guidance=guidance if self.folder.guided else None,
            encoder_hidden_states=text.to(device, self.dtype),
            pooled_projections=conditioning["pooled_prompt_embeds"].to(device, self.dtype),
            txt_ids=torch.zeros(text.shape[1], 3, device=device),
            img_ids=token_positions(height // SIDE, width // SIDE, device),
            return_dict=False,
        )[0]
        return unpack(output.float(), height, width)

    def _load_transformer(self, load: ModelLoad) -> torch.nn.Module:
        model = load_diffusers(FluxTransformer2DModel, load.path / "transformer", load.dtype)
        self.attention_in_use["transformer"] = apply_to_transformer(model, load.attention.get("transformer"))
        return model.to(load.torch_device)

    def _load_text(self, load: ModelLoad) -> TextEncoders:
        kernel = text_encoder_attention(load.attention.get("text_encoder"))
        self.attention_in_use |= {"text_encoder": kernel, "text_encoder_2": T5_ATTENTION}
        return TextEncoders(self.folder, load, self._options.max_sequence_length, kernel)


def token_positions(rows: int, columns: int, device: torch.device) -> torch.Tensor:
    """(rows x columns, 3) fp32: 0, row and column of each image token; text tokens are all at 0."""
    positions = torch.zeros(rows, columns, 3, device=device)
    positions[..., 1] = torch.arange(rows, device=device)[:, None]
    positions[..., 2] = torch.arange(columns, device=device)
    return positions.reshape(rows * columns, 3)
