"""Prompt encoding of Wan: UMT5's last hidden states, with zeros in place of what it says of padding."""

from __future__ import annotations

import html

import torch
from transformers import T5TokenizerFast, UMT5EncoderModel

from omni_portable.contracts.model import ModelLoad
from omni_portable.contracts.rollout import Conditioning
from omni_portable.models.text_encoding import (
    T5_ATTENTION,
    T5_FILES,
    load_encoder,
    load_matching_tokenizer,
    padded_tokens,
)
from omni_portable.models.wan22.folder import Wan22Folder


class TextEncoder:
    """The frozen UMT5 of one folder.

    Args:
        load: where and in what it computes.
        max_sequence_length: tokens of every prompt, padded or cut.
    """

    def __init__(self, folder: Wan22Folder, load: ModelLoad, max_sequence_length: int) -> None:
        self._device, self._dtype, self._tokens = load.torch_device, load.dtype, max_sequence_length
        self.model = load_encoder(UMT5EncoderModel, folder.path / "text_encoder", load, T5_ATTENTION)
        self._tokenizer = load_matching_tokenizer(
            T5TokenizerFast,
            folder.path / "tokenizer",
            T5_FILES,
            "the text encoder",
            int(folder.text_encoder["vocab_size"]),
        )

    @torch.no_grad()
    def encode(self, prompt: str) -> Conditioning:
        """'prompt_embeds' (max_sequence_length, text width) in the model's dtype."""
        text = cleaned(prompt)
        ids = padded_tokens(self._tokenizer, text, self._tokens, "the text encoder").to(self._device)
        count = min(len(self._tokenizer(text, verbose=False).input_ids), self._tokens)
        mask = (torch.arange(self._tokens, device=self._device) < count).to(ids.dtype).unsqueeze(0)
        hidden = self.model(ids, mask).last_hidden_state[0].to(self._dtype)
        return {"prompt_embeds": torch.cat([hidden[:count], torch.zeros_like(hidden[count:])])}


def cleaned(prompt: str) -> str:
    """HTML entities resolved (twice), white space folded: the stock pipeline's cleaning without its optional repair of
    broken encodings, which would make embeddings depend on an installed package."""
    return " ".join(html.unescape(html.unescape(prompt)).split())
