"""What adapters of autoregressive families have in common; a family loads its model and encodes its media."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

import torch

from omni_portable.contracts.errors import ConfigError, ModelError
from omni_portable.contracts.media import MediaArtifact
from omni_portable.contracts.model import ModelLoad
from omni_portable.contracts.tokens import TokenInputs, TokenRow, TokenScores
from omni_portable.models.autoregressive.decoding import CachedDecoding
from omni_portable.models.autoregressive.layout import rollout_name
from omni_portable.models.autoregressive.options import ChatOptions
from omni_portable.models.autoregressive.policy import LanguagePolicy
from omni_portable.models.autoregressive.scoring import score_rows
from omni_portable.models.autoregressive.text import ChatTokenizer

COMPONENTS = ("transformer", "text_encoder")
ATTENTION_PROJECTIONS = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj")


class LanguageAdapter:
    """Base of adapters (see :class:`omni_portable.contracts.tokens.AutoregressiveAdapter`).

    A subclass sets `_policy` where the transformer is loaded, and overrides `build_inputs` where it takes media.

    Args:
        load: how to load; `load.options` is the family's options dataclass.
        vocab_size: rows of the model's embedding, from its config file.
    """

    family: ClassVar[str]
    trainable_stage: ClassVar[str] = "language_model"
    options_class: ClassVar[type[ChatOptions]] = ChatOptions
    rollout_prefixes: ClassVar[Mapping[str, str]] = {}

    def __init__(self, load: ModelLoad, vocab_size: int) -> None:
        self.options = self._checked_options(load)
        unknown = sorted(set(load.components) - set(COMPONENTS))
        if unknown:
            raise ConfigError(f"model family '{self.family}' has no component '{unknown[0]}'", choices=COMPONENTS)
        self.torch_device, self.dtype, self.folder = load.torch_device, load.dtype, load.path
        self.chat = ChatTokenizer(load.path, self.options, vocab_size)
        self.end_ids = self.chat.end_ids
        self._policy: LanguagePolicy | None = None

    @property
    def processor(self) -> Any:
        """The library's tokenizer."""
        return self.chat.tokenizer

    @property
    def transformer(self) -> torch.nn.Module:
        """Language model and head; `ModelError` where they were not loaded."""
        return self._loaded()

    def build_inputs(self, prompt: str, media: Mapping[str, MediaArtifact], system_prompt: str = "") -> TokenInputs:
        """'ids' and 'positions' of a text prompt."""
        if media:
            raise ConfigError(f"model family '{self.family}' takes no input media", remedy="use prompts without media")
        self.chat.refuse_special(prompt, system_prompt)
        ids = self.chat.encode(self.chat.conversation(prompt, system_prompt))
        return {"ids": ids, "positions": torch.arange(len(ids))[None]}

    def begin(self, prompts: Sequence[TokenInputs]) -> CachedDecoding:
        return CachedDecoding(self._loaded(), prompts, self.torch_device)

    def score(
        self, rows: Sequence[TokenRow], temperature: float, *, entropy: bool = False, logits: bool = False
    ) -> TokenScores:
        return score_rows(self._loaded(), rows, temperature, self.torch_device, entropy=entropy, logits=logits)

    def response_ids(self, text: str) -> torch.Tensor:
        return self.chat.response_ids(text)

    def read_response(self, ids: Sequence[int], stop: Sequence[str] = ()) -> dict[str, MediaArtifact]:
        return self.chat.read(ids, stop)

    def lora_targets(self) -> tuple[str, ...]:
        """Attention projections of the language model."""
        return ATTENTION_PROJECTIONS

    def rollout_layout(self, name: str, tensor: torch.Tensor) -> Iterable[tuple[str, torch.Tensor]]:
        """Name in vLLM; a shard of a fused tensor is called 'FUSED:q', ':k', ':v', ':gate' or ':up' (layout.py)."""
        target, shard = rollout_name(name, self.rollout_prefixes)
        yield (f"{target}:{shard}" if shard else target), tensor

    def _loaded(self) -> LanguagePolicy:
        if self._policy is None:
            raise not_loaded(self, "transformer")
        return self._policy

    @classmethod
    def _checked_options(cls, load: ModelLoad) -> Any:
        options = load.options if load.options is not None else cls.options_class()
        if not isinstance(options, cls.options_class):
            wanted = cls.options_class.__name__
            raise ConfigError(f"model.options of family '{cls.family}' must be {wanted}, got {type(options).__name__}")
        return options


def not_loaded(adapter: LanguageAdapter, component: str) -> ModelError:
    """The error for a part that was not asked for when the model was loaded."""
    return ModelError(
        f"the {component} of {adapter.folder} was not loaded", remedy=f"add '{component}' to the components asked for"
    )


def attention_kernel(load: ModelLoad) -> str:
    """The attn_implementation of the language model: the chosen kernel, or the library's sdpa.

    Raises:
        ModelError: a choice that is no name of transformers.
    """
    choice = load.attention.get("language_model")
    if choice is None:
        return "sdpa"
    if choice.actor_library != "transformers":
        raise ModelError(
            f"the language model is a transformers model, '{choice.actor}' is a {choice.actor_library} name"
        )
    return choice.actor
