"""Tokenizer, chat format and end tokens of a model folder."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer

from omni_portable.contracts.errors import ConfigError, DataError, ModelError
from omni_portable.contracts.media import MediaArtifact
from omni_portable.contracts.tokens import RESPONSE
from omni_portable.models.autoregressive.options import ChatOptions
from omni_portable.models.folders import read_json
from omni_portable.models.loading import load_tokenizer

VOCABULARIES = (("tokenizer.json",), ("vocab.json", "merges.txt"))


class ChatTokenizer:
    """A folder's tokenizer with its chat template.

    Args:
        folder: of the model.
        options: how prompts are put into conversations.
        vocab_size: rows of the model's embedding.

    Raises:
        ModelError: no tokenizer, one with more tokens than the model embeds, or one without an end token.
        ConfigError: chat is asked for and the tokenizer has no chat template.
    """

    def __init__(self, folder: Path, options: ChatOptions, vocab_size: int) -> None:
        self._options = options
        self.tokenizer: Any = load_tokenizer(AutoTokenizer, folder, VOCABULARIES)
        if len(self.tokenizer) > vocab_size:
            raise ModelError(
                f"the tokenizer of {folder} has {len(self.tokenizer)} tokens, the model embeds {vocab_size}"
            )
        if options.chat and not self.tokenizer.chat_template:
            raise ConfigError(
                f"the tokenizer of {folder} has no chat template",
                remedy="set model.options.chat=false to use prompts as they are, or add a chat_template.jinja",
            )
        self.end_ids = _end_ids(folder, self.tokenizer)
        self._special = sorted(str(t) for t in self.tokenizer.added_tokens_decoder.values() if t.special)

    def encode(self, text: str) -> torch.Tensor:
        """(L,) int64, nothing added."""
        return torch.tensor(self.tokenizer(text, add_special_tokens=False).input_ids, dtype=torch.int64)

    def conversation(self, user: str, system: str = "") -> str:
        """The text that a model continues with its response, for one turn of the user."""
        system = system or self._options.system_prompt
        if not self._options.chat:
            return system + user
        messages = [{"role": "system", "content": system}] if system else []
        messages.append({"role": "user", "content": user})
        text: str = self.tokenizer.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=True, **self._options.template
        )
        return text

    def refuse_special(self, *prompts: str) -> None:
        """A prompt that spells a special token would be read as one (`DataError`)."""
        for prompt in prompts:
            for token in self._special:
                if token in prompt:
                    raise DataError(f"the prompt {prompt[:80]!r} holds the model's special token {token!r}")

    def response_ids(self, text: str) -> torch.Tensor:
        """(L,) int64 of a given response, closed by the tokenizer's end token."""
        end = self.tokenizer.eos_token_id
        return torch.cat([self.encode(text), torch.tensor([end], dtype=torch.int64)])

    def read(self, ids: Sequence[int], stop: Iterable[str] = ()) -> dict[str, MediaArtifact]:
        """The text of a response without special tokens, cut before the first stop text."""
        return {RESPONSE: MediaArtifact(RESPONSE, "text", cut(self.decode(ids), stop), "str")}

    def decode(self, ids: Sequence[int]) -> str:
        """Text without special tokens; bytes that are no UTF-8 become replacement characters."""
        text: str = self.tokenizer.decode(list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return text


def cut(text: str, stop: Iterable[str]) -> str:
    """`text` before the earliest of the stop texts."""
    found = [at for each in stop if (at := text.find(each)) >= 0]
    return text[: min(found)] if found else text


def _end_ids(folder: Path, tokenizer: Any) -> frozenset[int]:
    """End tokens of `generation_config.json` where there is one, and the tokenizer's."""
    ids = set() if tokenizer.eos_token_id is None else {int(tokenizer.eos_token_id)}
    path = folder / "generation_config.json"
    if path.is_file():
        given = read_json(path).get("eos_token_id", [])
        ids |= set(given if isinstance(given, list) else [given])
    if not ids:
        raise ModelError(f"{folder} names no end token (eos_token_id), so that no response would ever end")
    return frozenset(ids)
