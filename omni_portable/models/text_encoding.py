"""Frozen text encoders and their tokenizers, loaded and checked; prompts are encoded one at a time.

An embedding then does not depend (in its last bits) on which prompts it happened to be batched with, and a cached one
equals a fresh one.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import CLIPTokenizer, T5EncoderModel, T5TokenizerFast

from omni_portable.contracts.errors import ModelError
from omni_portable.contracts.model import ModelLoad
from omni_portable.models.loading import load_tokenizer, load_transformers

logger = logging.getLogger(__name__)

T5_ATTENTION = "eager"
"""The only implementation that transformers has for T5's attention with a position bias."""

CLIP_FILES = (("tokenizer.json",), ("vocab.json", "merges.txt"))
T5_FILES = (("tokenizer.json",), ("spiece.model",))


def load_encoder(cls: Any, folder: Path, load: ModelLoad, kernel: str) -> Any:
    """A frozen encoder on the load's device, checked to have taken the attention implementation."""
    model: Any = load_transformers(cls, folder, load.dtype, kernel)
    if model.config._attn_implementation != kernel:
        raise ModelError(f"{folder} did not take the attention implementation '{kernel}'")
    return model.requires_grad_(False).to(load.torch_device)


def load_matching_tokenizer(cls: Any, folder: Path, files: Sequence[tuple[str, ...]], encoder: str, size: int) -> Any:
    """A tokenizer, checked to have no more tokens than the encoder's vocabulary of `size`."""
    tokenizer = load_tokenizer(cls, folder, files)
    if len(tokenizer) > size:
        raise ModelError(f"{folder} has {len(tokenizer)} tokens, {encoder} embeds {size}")
    return tokenizer


def padded_tokens(tokenizer: Any, prompt: str, length: int, encoder: str) -> torch.Tensor:
    """(1, length) token ids of a prompt, padded or cut; a cut prompt is reported in the log."""
    full = len(tokenizer(prompt, verbose=False).input_ids)
    if full > length:
        logger.warning("%s reads %d of the %d tokens of the prompt %r", encoder, length, full, prompt)
    tokens = tokenizer([prompt], padding="max_length", max_length=length, truncation=True, return_tensors="pt")
    ids: torch.Tensor = tokens.input_ids
    return ids


class PaddedEncoder:
    """A frozen encoder and its tokenizer; every prompt is padded or cut to one number of tokens.

    Args:
        path: folder of the model.
        name: of the encoder's folder; its tokenizer's is called alike ('text_encoder_2' -> 'tokenizer_2').
        config: the encoder's config file.
        classes: of the encoder and of the tokenizer.
        files: sets of files, one of which the tokenizer needs.
        kernel: attn_implementation.
    """

    def __init__(
        self,
        path: Path,
        name: str,
        config: Mapping[str, Any],
        load: ModelLoad,
        classes: tuple[Any, Any],
        files: Sequence[tuple[str, ...]],
        kernel: str,
    ) -> None:
        self.name, self._path, self._config, self._device = name, path, config, load.torch_device
        folder = path / name.replace("text_encoder", "tokenizer")
        self.tokenizer = load_matching_tokenizer(classes[1], folder, files, name, int(config["vocab_size"]))
        self.model = load_encoder(classes[0], path / name, load, kernel)

    def ids(self, prompt: str, length: int) -> torch.Tensor:
        """(1, length) token ids on the device; a prompt that is cut is reported in the log."""
        return padded_tokens(self.tokenizer, prompt, length, self.name).to(self._device)

    def check_positions(self, tokens: int, tokenizer: str) -> None:
        """`ModelError` where a tokenizer pads to more tokens than the encoder has positions."""
        positions = int(self._config["max_position_embeddings"])
        if tokens > positions:
            maker = self._path / tokenizer
            raise ModelError(f"the tokenizer of {maker} makes {tokens} tokens, {self.name} has {positions} positions")


def clip_encoder(
    path: Path, name: str, config: Mapping[str, Any], load: ModelLoad, cls: Any, kernel: str
) -> PaddedEncoder:
    """A CLIP of the given class."""
    return PaddedEncoder(path, name, config, load, (cls, CLIPTokenizer), CLIP_FILES, kernel)


def t5_encoder(path: Path, name: str, config: Mapping[str, Any], load: ModelLoad) -> PaddedEncoder:
    """A T5."""
    return PaddedEncoder(path, name, config, load, (T5EncoderModel, T5TokenizerFast), T5_FILES, T5_ATTENTION)
