"""Stable Diffusion 3 / 3.5 on diffusers' own classes: any folder of a `StableDiffusion3Pipeline`, any of its parts."""

from __future__ import annotations

import torch
from diffusers import SD3Transformer2DModel

from omni_portable.contracts.model import ModelLoad
from omni_portable.contracts.rollout import Conditioning
from omni_portable.models.attention import apply_to_transformer, text_encoder_attention
from omni_portable.models.kl_image_adapter import KLImageAdapter
from omni_portable.models.loading import load_diffusers
from omni_portable.models.sd3 import LORA_TARGETS, SD3Options
from omni_portable.models.sd3.attention import JointAttention
from omni_portable.models.sd3.folder import T5, read_folder
from omni_portable.models.sd3.layout import LAYOUT
from omni_portable.models.sd3.text import TextEncoders
from omni_portable.models.text_encoding import T5_ATTENTION


class SD3Adapter(KLImageAdapter):
    """See :class:`KLImageAdapter`."""

    family = "sd3"
    layout = LAYOUT
    options_type = SD3Options
    spacing = "trained"
    read_folder = staticmethod(read_folder)

    def lora_targets(self) -> tuple[str, ...]:
        """All projections of the joint attention (Flow-GRPO's SD3 recipe)."""
        return LORA_TARGETS

    def _forward(self, latents: torch.Tensor, timesteps: torch.Tensor, conditioning: Conditioning) -> torch.Tensor:
        output: torch.Tensor = self.transformer(
            hidden_states=latents.to(self.dtype),
            timestep=timesteps,
            encoder_hidden_states=conditioning["prompt_embeds"].to(latents.device, self.dtype),
            pooled_projections=conditioning["pooled_prompt_embeds"].to(latents.device, self.dtype),
            return_dict=False,
        )[0]
        return output.float()

    def _load_transformer(self, load: ModelLoad) -> torch.nn.Module:
        model = load_diffusers(SD3Transformer2DModel, load.path / "transformer", load.dtype)
        choice = load.attention.get("transformer")
        self.attention_in_use["transformer"] = apply_to_transformer(model, choice, JointAttention())
        return model.to(load.torch_device)

    def _load_text(self, load: ModelLoad) -> TextEncoders:
        kernel = text_encoder_attention(load.attention.get("text_encoder"))
        text = TextEncoders(self.folder, load, self._options.max_sequence_length, kernel)
        self.attention_in_use |= {name: T5_ATTENTION if name == T5 else kernel for name in text.models}
        return text
