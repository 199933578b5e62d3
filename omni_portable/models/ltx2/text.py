"""Prompt encoding of LTX-2: all hidden states of Gemma, through one connector for video and one for sound."""

from __future__ import annotations

from typing import Any

import torch
from diffusers.pipelines.ltx2 import LTX2TextConnectors
from transformers import Gemma3ForConditionalGeneration, GemmaTokenizerFast

from omni_portable.contracts.errors import ConfigError
from omni_portable.contracts.model import ModelLoad
from omni_portable.contracts.rollout import Conditioning
from omni_portable.models.loading import load_diffusers
from omni_portable.models.ltx2.folder import LTX2Folder
from omni_portable.models.text_encoding import load_encoder, load_matching_tokenizer, padded_tokens

GEMMA_FILES = (("tokenizer.json",), ("tokenizer.model",))


class TextEncoder:
    """The frozen Gemma and connectors of one folder.

    Args:
        load: where and in what they compute.
        max_sequence_length: tokens of every prompt, padded on the left or cut.
        kernel: attn_implementation of Gemma.

    Raises:
        ConfigError: a length that is no multiple of the connectors' registers.
    """

    def __init__(self, folder: LTX2Folder, load: ModelLoad, max_sequence_length: int, kernel: str) -> None:
        if max_sequence_length % folder.registers:
            raise ConfigError(
                f"model.options.max_sequence_length is {max_sequence_length}; {folder.path} fills prompts with "
                f"{folder.registers} registers",
                remedy=f"set it to a multiple of {folder.registers}",
            )
        self._device, self._dtype, self._tokens = load.torch_device, load.dtype, max_sequence_length
        self._registers = folder.registers > 1
        encoder = load_encoder(Gemma3ForConditionalGeneration, folder.path / "text_encoder", load, kernel)
        self._tokenizer = load_matching_tokenizer(
            GemmaTokenizerFast,
            folder.path / "tokenizer",
            GEMMA_FILES,
            "the text encoder",
            int(encoder.config.get_text_config().vocab_size),
        )
        self._tokenizer.padding_side = "left"
        if self._tokenizer.pad_token is None:
            self._tokenizer.pad_token = self._tokenizer.eos_token
        self._encoder: Any = encoder.model  # the language head would score every token for nothing
        connectors = load_diffusers(LTX2TextConnectors, folder.path / "connectors", load.dtype)
        self._connectors: Any = connectors.requires_grad_(False).to(load.torch_device)

    @torch.no_grad()
    def encode(self, prompt: str) -> Conditioning:
        """'prompt_embeds' (tokens, video width) and 'audio_prompt_embeds' (tokens, audio width) in the model's dtype,
        and 'prompt_mask' (tokens,) where the connectors leave padding in place."""
        text = prompt.strip()
        ids = padded_tokens(self._tokenizer, text, self._tokens, "the text encoder").to(self._device)
        count = min(len(self._tokenizer(text, verbose=False).input_ids), self._tokens)
        mask = (torch.arange(self._tokens, device=self._device) >= self._tokens - count).to(ids.dtype).unsqueeze(0)
        states = self._encoder(input_ids=ids, attention_mask=mask, output_hidden_states=True).hidden_states
        packed = torch.stack(states, dim=-1).flatten(2, 3).to(self._dtype)
        video, audio, kept = self._connectors(packed, mask, padding_side="left")
        found: Conditioning = {"prompt_embeds": video[0], "audio_prompt_embeds": audio[0]}
        if not self._registers:
            found["prompt_mask"] = kept[0]
        return found
