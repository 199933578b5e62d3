"""Prompt encoding of FLUX: last hidden states of T5, and CLIP's pooled state."""

from __future__ import annotations

import torch
from transformers import CLIPTextModel

from omni_portable.contracts.model import ModelLoad
from omni_portable.contracts.rollout import Conditioning
from omni_portable.models.flux.folder import FluxFolder
from omni_portable.models.text_encoding import clip_encoder, t5_encoder


class TextEncoders:
    """Both frozen encoders of one folder.

    Args:
        max_sequence_length: T5 tokens.
        attention: attn_implementation of the CLIP.
    """

    def __init__(self, folder: FluxFolder, load: ModelLoad, max_sequence_length: int, attention: str) -> None:
        path = folder.path
        self.clip = clip_encoder(path, "text_encoder", folder.text_encoder, load, CLIPTextModel, attention)
        self.t5 = t5_encoder(path, "text_encoder_2", folder.text_encoder_2, load)
        self._dtype, self._tokens = load.dtype, max_sequence_length
        self._clip_tokens = int(self.clip.tokenizer.model_max_length)
        self.clip.check_positions(self._clip_tokens, "tokenizer")

    @torch.no_grad()
    def encode(self, prompt: str) -> Conditioning:
        """'prompt_embeds' (max_sequence_length, T5 width) and 'pooled_prompt_embeds' (CLIP width), model dtype."""
        hidden = self.t5.model(self.t5.ids(prompt, self._tokens))[0]
        pooled = self.clip.model(self.clip.ids(prompt, self._clip_tokens)).pooler_output
        return {"prompt_embeds": hidden[0].to(self._dtype), "pooled_prompt_embeds": pooled[0].to(self._dtype)}
