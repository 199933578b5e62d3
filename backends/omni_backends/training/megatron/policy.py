"""A language model of Megatron's layers that is trained and scored like any other policy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import torch
from torch.utils.checkpoint import checkpoint

from omni_backends.training.megatron.build import tensor_group
from omni_backends.training.megatron.layout import fuse, share
from omni_backends.training.megatron.settings import Settings
from omni_backends.training.megatron.vocabulary import whole_vocabulary
from omni_portable.contracts.errors import CapabilityError, WeightSyncError
from omni_portable.contracts.tokens import TokenRow, TokenScores
from omni_portable.models.autoregressive.packing import Packed
from omni_portable.models.autoregressive.policy import LanguagePolicy
from omni_portable.models.autoregressive.scoring import score_rows


class MegatronPolicy(torch.nn.Module):
    """One rank's share of the model. Reads and scores batches as `LanguagePolicy` does.

    Args:
        gpt: of `build.build_gpt`; parameters keep the names that they have in it.
        settings: that it was built from.
        ranks / rank: that share every layer.
    """

    def __init__(self, gpt: Any, settings: Settings, rank: int = 0, ranks: int = 1) -> None:
        super().__init__()
        self.embedding, self.decoder, self.output_layer = gpt.embedding, gpt.decoder, gpt.output_layer
        self._settings, self._rank, self._ranks = settings, rank, ranks
        self._recompute = False
        width = settings.head_width
        exponents = torch.arange(0, width, 2, dtype=torch.int64).float() / width
        self.frequencies: torch.Tensor
        self.register_buffer("frequencies", 1.0 / (settings.rotary_base**exponents), persistent=False)

    @property
    def lm_head(self) -> Any:
        """Whatever has the weight (rows, width) of this rank's output layer."""
        return SimpleNamespace(weight=self._output_weight())

    @torch.no_grad()
    def load(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Set this rank's shares from whole canonical tensors.

        Raises:
            WeightSyncError: tensors that are not those of the model.
        """
        own = dict(self.named_parameters())
        given = fuse(tensors, self._settings.shape)
        if own.keys() != given.keys():
            different = sorted(own.keys() ^ given.keys())
            raise WeightSyncError(f"Megatron's model and the given tensors differ in '{different[0]}'")
        for name, parameter in own.items():
            mine = share(name, given[name], self._rank, self._ranks)
            if mine.shape != parameter.shape:
                raise WeightSyncError(
                    f"'{name}' is {tuple(mine.shape)} in the model's folder, Megatron's is {tuple(parameter.shape)}"
                )
            parameter.copy_(mine)

    def hidden_states(self, packed: Packed, cache: Any = None) -> torch.Tensor:
        """(B, T, width) after the final norm.

        Raises:
            CapabilityError: a cache, media or padding on the left, none of which a replay has.
        """
        if cache is not None or packed.media is not None or packed.attended is not None:
            raise CapabilityError("train engine 'megatron' scores complete text sequences only")
        hidden = self.embedding(input_ids=packed.ids, position_ids=packed.positions[0])
        angles = self._angles(packed.positions[0])
        for layer in self.decoder.layers:
            arguments = {"hidden_states": hidden, "attention_mask": None, "rotary_pos_emb": angles}
            if self._recompute and torch.is_grad_enabled():
                hidden, _ = checkpoint(layer, use_reentrant=False, **arguments)
            else:
                hidden, _ = layer(**arguments)
        normed: torch.Tensor = self.decoder.final_layernorm(hidden)
        return normed.transpose(0, 1)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """(..., V) fp32 from (..., width), of the whole vocabulary on every rank."""
        flat = hidden.reshape(-1, 1, hidden.shape[-1])
        found, _ = self.output_layer(flat, weight=self._output_weight())
        if self._ranks > 1:
            found = whole_vocabulary(found, tensor_group())
        logits: torch.Tensor = found[:, 0, : self._settings.shape.vocabulary].float()
        return logits.view(*hidden.shape[:-1], -1)

    def enable_gradient_checkpointing(self) -> None:
        """Compute activations of the layers again in the backward pass."""
        self._recompute = True

    def _output_weight(self) -> torch.Tensor:
        tied = self._settings.tied
        weight: torch.Tensor = self.embedding.word_embeddings.weight if tied else self.output_layer.weight
        return weight

    def _angles(self, positions: torch.Tensor) -> torch.Tensor:
        """(T, B, 1, head width) fp32 from (B, T)."""
        angles = positions.T[..., None].float() * self.frequencies
        return torch.cat([angles, angles], dim=-1)[:, :, None]


class MegatronAdapter:
    """The part of an autoregressive adapter that training asks for.

    Args:
        policy: that is trained.
        family: of the model.
        device: that batches are read on.
    """

    trainable_stage = "language_model"

    def __init__(self, policy: MegatronPolicy, family: str, device: torch.device) -> None:
        self.transformer, self.family, self.torch_device = policy, family, device

    def score(
        self, rows: Sequence[TokenRow], temperature: float, *, entropy: bool = False, logits: bool = False
    ) -> TokenScores:
        """See `contracts.tokens.AutoregressiveAdapter.score`."""
        policy = cast(LanguagePolicy, self.transformer)  # what scoring asks of it is all here
        return score_rows(policy, rows, temperature, self.torch_device, entropy=entropy, logits=logits)


def source_settings(folder: Path) -> Mapping[str, Any]:
    """`config.json` of a transformers folder with the library's defaults."""
    from transformers import AutoConfig

    found: Mapping[str, Any] = AutoConfig.from_pretrained(folder, local_files_only=True).to_dict()
    return found
