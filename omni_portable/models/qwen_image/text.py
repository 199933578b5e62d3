"""Prompt encoding of Qwen-Image: the last hidden states of Qwen2.5-VL over a fixed template, less the template's start.

As in the stock pipeline, a fixed number of tokens is dropped, which is the length of the template's part before the
prompt for the published tokenizer. Prompts are encoded one at a time, without padding.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

import torch
from transformers import Qwen2_5_VLForConditionalGeneration, Qwen2Tokenizer

from omni_portable.contracts.model import ModelLoad
from omni_portable.contracts.rollout import Conditioning
from omni_portable.models.qwen_image import MAX_TOKENS
from omni_portable.models.qwen_image.folder import QwenImageFolder
from omni_portable.models.text_encoding import load_encoder, load_matching_tokenizer

logger = logging.getLogger(__name__)

TOKENIZER_FILES = (("tokenizer.json",), ("vocab.json", "merges.txt"))


@dataclass(frozen=True)
class Template:
    """Chat template with one place for the prompt, and how many of its tokens are dropped from the start."""

    text: str
    dropped: int

    @property
    def start(self) -> str:
        """What stands before the prompt."""
        return self.text.partition("{}")[0]


TEXT_TO_IMAGE = Template(
    "<|im_start|>system\nDescribe the image by detailing the color, shape, size, texture, quantity, text, spatial "
    "relationships of the objects and background:<|im_end|>\n<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n",
    dropped=34,
)


def load_text_encoder(folder: QwenImageFolder, load: ModelLoad, kernel: str) -> tuple[Any, Any]:
    """The frozen Qwen2.5-VL (without its head's use) and the tokenizer of a folder."""
    model = load_encoder(Qwen2_5_VLForConditionalGeneration, folder.path / "text_encoder", load, kernel)
    size = int(folder.text["vocab_size"])
    tokenizer = load_matching_tokenizer(
        Qwen2Tokenizer, folder.path / "tokenizer", TOKENIZER_FILES, "text_encoder", size
    )
    return model, tokenizer


class PromptEncoder:
    """The text encoder of one folder."""

    def __init__(self, folder: QwenImageFolder, load: ModelLoad, max_sequence_length: int, kernel: str) -> None:
        self.model, self._tokenizer = load_text_encoder(folder, load, kernel)
        self._device, self._dtype = load.torch_device, load.dtype
        self._tokens = max_sequence_length

    @torch.no_grad()
    def encode(self, prompt: str) -> Conditioning:
        """'prompt_embeds' (tokens, hidden size) in the model's dtype; at most max_sequence_length tokens."""
        ids = self._tokenizer(TEXT_TO_IMAGE.text.format(prompt), return_tensors="pt").input_ids
        read = ids[:, : MAX_TOKENS + TEXT_TO_IMAGE.dropped]
        hidden = last_hidden(self.model, read.to(self._device))[0, TEXT_TO_IMAGE.dropped :]
        if len(hidden) > self._tokens or ids.shape[1] > read.shape[1]:
            logger.warning(
                "text_encoder reads %d of the %d tokens of the prompt %r",
                min(len(hidden), self._tokens),
                ids.shape[1] - TEXT_TO_IMAGE.dropped,
                prompt,
            )
        return {"prompt_embeds": hidden[: self._tokens].to(self._dtype)}


def last_hidden(model: Any, ids: torch.Tensor, **vision: torch.Tensor) -> torch.Tensor:
    """(1, tokens, hidden size): the language model's normalised last states; its head is not run."""
    states: torch.Tensor = model.model(input_ids=ids, attention_mask=torch.ones_like(ids), **vision).last_hidden_state
    return states
