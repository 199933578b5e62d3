"""Prompt encoding of Stable Diffusion 3 from any subset of its encoders; with both CLIPs, as the stock pipeline does.

    CLIP part: penultimate hidden states of both CLIPs side by side, padded with zeros to the joint width;
    T5 part: last hidden states, or as many zero vectors where there is no T5;
    prompt embeddings: CLIP part, then T5 part, along the tokens; pooled: both CLIPs' projected pools side by side.

A CLIP that is absent contributes zeros of its width to both (the stock pipeline does not define this case); without any
CLIP there are no CLIP tokens.

Prompts are encoded one at a time, so that an embedding does not depend (in its last bits) on which prompts it happened
to be batched with, and a cached one equals a fresh one.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from transformers import CLIPTextModelWithProjection, CLIPTokenizer, T5EncoderModel, T5TokenizerFast

from omni_portable.contracts.errors import ModelError
from omni_portable.contracts.rollout import Conditioning
from omni_portable.models.loading import load_tokenizer, load_transformers
from omni_portable.models.sd3.folder import CLIPS, T5, SD3Folder

logger = logging.getLogger(__name__)

T5_ATTENTION = "eager"
"""The only implementation that transformers has for T5's attention with a position bias."""

_CLIP_FILES = (("tokenizer.json",), ("vocab.json", "merges.txt"))
_T5_FILES = (("tokenizer.json",), ("spiece.model",))


class TextEncoders:
    """The frozen encoders of one folder.

    Args:
        folder: which encoders there are.
        torch_device / dtype: where and in what they compute.
        max_sequence_length: T5 tokens.
        attention: attn_implementation of the CLIPs.
    """

    def __init__(
        self,
        folder: SD3Folder,
        torch_device: torch.device,
        dtype: torch.dtype,
        max_sequence_length: int,
        attention: str,
    ) -> None:
        self._device, self._dtype = torch_device, dtype
        self._t5_tokens = max_sequence_length
        self._joint_width = int(folder.transformer["joint_attention_dim"])
        self._pooled_width = int(folder.transformer["pooled_projection_dim"])
        self._absent_width = folder.absent_clip_width
        self.models: dict[str, Any] = {}
        self._tokenizers: dict[str, Any] = {}
        for name, config in folder.encoders.items():
            self._tokenizers[name] = _load_tokenizer(folder.path, name, config)
            kernel = T5_ATTENTION if name == T5 else attention
            cls = T5EncoderModel if name == T5 else CLIPTextModelWithProjection
            model = load_transformers(cls, folder.path / name, dtype, kernel)
            if model.config._attn_implementation != kernel:  # type: ignore[union-attr]
                raise ModelError(f"{folder.path / name} did not take the attention implementation '{kernel}'")
            self.models[name] = model.requires_grad_(False).to(torch_device)
        self._clips = [name for name in CLIPS if name in self.models]
        self._clip_tokens = int(self._tokenizers[self._clips[0]].model_max_length) if self._clips else 0
        for name in self._clips:
            positions = int(folder.encoders[name]["max_position_embeddings"])
            if self._clip_tokens > positions:
                raise ModelError(
                    f"the tokenizer of {folder.path / self._clips[0]} makes {self._clip_tokens} tokens, {name} has "
                    f"{positions} positions"
                )

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
        if name not in self.models:
            return self._zeros(1, self._clip_tokens, self._absent_width), self._zeros(1, self._absent_width)
        output = self.models[name](self._tokens(name, prompt, self._clip_tokens), output_hidden_states=True)
        return output.hidden_states[-2].to(self._dtype), output.text_embeds

    def _t5(self, prompt: str) -> torch.Tensor:
        if T5 not in self.models:
            return self._zeros(1, self._t5_tokens, self._joint_width)
        hidden: torch.Tensor = self.models[T5](self._tokens(T5, prompt, self._t5_tokens))[0]
        return hidden.to(self._dtype)

    def _tokens(self, name: str, prompt: str, length: int) -> torch.Tensor:
        tokenizer = self._tokenizers[name]
        full = len(tokenizer(prompt, verbose=False).input_ids)
        if full > length:
            logger.warning("%s reads %d of the %d tokens of the prompt %r", name, length, full, prompt)
        tokens = tokenizer([prompt], padding="max_length", max_length=length, truncation=True, return_tensors="pt")
        ids: torch.Tensor = tokens.input_ids.to(self._device)
        return ids


def _load_tokenizer(path: Path, encoder: str, config: Mapping[str, Any]) -> Any:
    """The tokenizer that belongs to an encoder ('text_encoder_2' -> 'tokenizer_2'), checked against its vocabulary."""
    folder = path / encoder.replace("text_encoder", "tokenizer")
    if encoder == T5:
        tokenizer = load_tokenizer(T5TokenizerFast, folder, _T5_FILES)
    else:
        tokenizer = load_tokenizer(CLIPTokenizer, folder, _CLIP_FILES)
    if len(tokenizer) > int(config["vocab_size"]):
        raise ModelError(f"{folder} has {len(tokenizer)} tokens, {encoder} embeds {config['vocab_size']}")
    return tokenizer
