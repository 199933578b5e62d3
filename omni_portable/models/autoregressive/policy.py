"""The trainable stage of an autoregressive model as one module, and how it reads a batch.

A library model holds frozen towers beside the language model that is trained. :class:`LanguagePolicy` shares the
language model and the head with it under their canonical names and leaves the rest out, so that whatever an engine does
with 'the policy' (LoRA, optimizer, sleep, weight sync) concerns what is trained and nothing else.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import torch

from omni_portable.contracts.errors import CapabilityError
from omni_portable.models.autoregressive.packing import Packed
from omni_portable.models.loading import quiet_libraries

COMPANIONS = (".json", ".jinja", ".txt", ".model")
"""Endings of files that belong to a model beside its weights."""


class LanguagePolicy(torch.nn.Module):
    """Language model and head of a transformers model.

    Args:
        full: the library's model; its `lm_head` is shared.
        backbone: dotted path of the language model in it ('model', 'model.language_model').
        source: folder that it came from.
    """

    def __init__(self, full: Any, backbone: str, source: Path) -> None:
        super().__init__()
        self._source = source
        self._backbone = backbone
        holder: torch.nn.Module = self
        *parents, last = backbone.split(".")
        for name in parents:
            child = torch.nn.Module()
            holder.add_module(name, child)
            holder = child
        holder.add_module(last, full.get_submodule(backbone))
        self.lm_head = full.lm_head
        self._unregistered = (full,)  # in a tuple, so that its towers are no parameters of this module

    @property
    def language_model(self) -> Any:
        """The library's language model: embeddings, layers, final norm."""
        return self.get_submodule(self._backbone)

    def hidden_states(self, packed: Packed, cache: Any = None) -> torch.Tensor:
        """(B, T, width) after the final norm; a cache is filled in passing."""
        embeds = self.language_model.embed_tokens(packed.ids)
        extra: dict[str, Any] = {}
        media = packed.media
        if media is not None:
            embeds = embeds.clone()
            embeds[media.rows, media.columns] = media.embeds.to(embeds.dtype)
            if media.deep is not None:
                extra = {"visual_pos_masks": media.deep_mask, "deepstack_visual_embeds": list(media.deep)}
        positions = packed.positions[0] if packed.positions.shape[0] == 1 else packed.positions
        output = self.language_model(
            inputs_embeds=embeds,
            position_ids=positions,
            attention_mask=packed.attended,
            past_key_values=cache,
            use_cache=cache is not None,
            **extra,
        )
        hidden: torch.Tensor = output.last_hidden_state
        return hidden

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """(..., V) fp32 from (..., width)."""
        logits: torch.Tensor = self.lm_head(hidden)
        return logits.float()

    def enable_gradient_checkpointing(self) -> None:
        """Compute activations of the layers again in the backward pass.

        The library checkpoints in training mode only, which is harmless where a layer has no dropout.

        Raises:
            CapabilityError: the model has dropout, which training mode would turn on.
        """
        rate = getattr(self.language_model.config, "attention_dropout", 0.0)
        if rate:
            raise CapabilityError(
                f"actor.gradient_checkpointing is on, but the model has attention_dropout={rate}",
                remedy="set attention_dropout to 0 in the model's config.json, or turn checkpointing off",
            )
        full = self._unregistered[0]
        full.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        for layer in self.language_model.layers:
            layer.train()

    def save_pretrained(self, folder: str | Path, **arguments: Any) -> None:
        """Write the library's model, towers included, as its own class reads it, with tokenizer and preprocessors."""
        with quiet_libraries():
            self._unregistered[0].save_pretrained(folder, **arguments)
        for file in sorted(self._source.iterdir()):
            beside = file.suffix in COMPANIONS and not file.name.endswith(".index.json")
            if beside and not (Path(folder) / file.name).exists():
                shutil.copyfile(file, Path(folder) / file.name)
