"""Prompt encoding of Stable Diffusion 3 from any subset of its encoders; with both CLIPs, as the stock pipeline does.

    CLIP part: penultimate hidden states of both CLIPs side by side, padded with zeros to the joint width;
    T5 part: last hidden states, or as many zero vectors where there is no T5;
    prompt embeddings: CLIP part, then T5 part, along the tokens; pooled: both CLIPs' projected pools side by side.

A CLIP that is absent contributes zeros of its width to both (the stock pipeline does not define this case); without any
CLIP there are no CLIP tokens.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers import CLIPTextModelWithProjection

from omni_portable.contracts.model import ModelLoad
from omni_portable.contracts.rollout import Conditioning
from omni_portable.models.sd3.folder import CLIPS, T5, SD3Folder
from omni_portable.models.text_encoding import clip_encoder, t5_encoder


class TextEncoders:
    """The frozen encoders of one folder.

    Args:
        folder: which encoders there are.
        load: where and in what they compute.
        max_sequence_length: T5 tokens.
        attention: attn_implementation of the CLIPs.
    """

    def __init__(self, folder: SD3Folder, load: ModelLoad, max_sequence_length: int, attention: str) -> None:
        self._device, self._dtype = load.torch_device, load.dtype
        self._t5_tokens = max_sequence_length
        self._joint_width = int(folder.transformer["joint_attention_dim"])
        self._pooled_width = int(folder.transformer["pooled_projection_dim"])
        self._absent_width = folder.absent_clip_width
        path = folder.path
        self._encoders = {
            name: t5_encoder(path, name, config, load)
            if name == T5
            else clip_encoder(path, name, config, load, CLIPTextModelWithProjection, attention)
            for name, config in folder.encoders.items()
        }
        self._clips = [name for name in CLIPS if name in self._encoders]
        first = self._clips[0] if self._clips else ""
        self._clip_tokens = int(self._encoders[first].tokenizer.model_max_length) if first else 0
        for name in self._clips:
            self._encoders[name].check_positions(self._clip_tokens, first)

    @property
    def models(self) -> dict[str, Any]:
        """Encoder -> its model."""
        return {name: encoder.model for name, encoder in self._encoders.items()}

    @torch.no_grad()
    def encode(self, prompt: str) -> Conditioning:
        """'prompt_embeds' (clip tokens + T5 tokens, joint width) and 'pooled_prompt_embeds' (pooled width)."""
        if not self._clips:
            return {"prompt_embeds": self._t5(prompt)[0], "pooled_prompt_embeds": self._zeros(self._pooled_width)}
        first, first_pooled = self._clip(CLIPS[0], prompt)
        second, second_pooled = self._clip(CLIPS[1], prompt)
        clip = torch.cat([first, second], dim=-1)
        clip = torch.nn.functional.pad(clip, (0, self._joint_width - clip.shape[-1]))
        embeds = torch.cat([clip, self._t5(prompt)], dim=-2)
        pooled = torch.cat([first_pooled, second_pooled], dim=-1)
        return {"prompt_embeds": embeds[0], "pooled_prompt_embeds": pooled[0]}

    def _zeros(self, *shape: int) -> torch.Tensor:
        return torch.zeros(shape, dtype=self._dtype, device=self._device)

    def _clip(self, name: str, prompt: str) -> tuple[torch.Tensor, torch.Tensor]:
        if name not in self._encoders:
            return self._zeros(1, self._clip_tokens, self._absent_width), self._zeros(1, self._absent_width)
        encoder = self._encoders[name]
        output = encoder.model(encoder.ids(prompt, self._clip_tokens), output_hidden_states=True)
        return output.hidden_states[-2].to(self._dtype), output.text_embeds

    def _t5(self, prompt: str) -> torch.Tensor:
        if T5 not in self._encoders:
            return self._zeros(1, self._t5_tokens, self._joint_width)
        encoder = self._encoders[T5]
        hidden: torch.Tensor = encoder.model(encoder.ids(prompt, self._t5_tokens))[0]
        return hidden.to(self._dtype)
