"""Decoding with a KV cache: B rows in lockstep, one forward per token."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from transformers import DynamicCache

from omni_portable.contracts.tokens import TokenInputs
from omni_portable.models.autoregressive.packing import Packed, pack_prompts
from omni_portable.models.autoregressive.policy import LanguagePolicy


class CachedDecoding:
    """Implements :class:`omni_portable.contracts.tokens.Decoding`; the caller is under no_grad."""

    def __init__(self, policy: LanguagePolicy, prompts: Sequence[TokenInputs], device: torch.device) -> None:
        self._policy, self._device = policy, device
        self._cache = DynamicCache(config=policy.language_model.config)
        packed = pack_prompts(prompts, device)
        assert packed.attended is not None  # padding on the left is masked
        self._attended = packed.attended
        last = [prompt["positions"].max() for prompt in prompts]
        self._position = torch.stack(last).to(device) + 1
        self._axes = packed.positions.shape[0]
        self._hidden = policy.hidden_states(packed, self._cache)[:, -1]

    def logits(self) -> torch.Tensor:
        """(B, V) fp32 of the next token."""
        return self._policy.logits(self._hidden)

    def advance(self, ids: torch.Tensor) -> None:
        """Append one token (B,) int64 to every row."""
        column = ids.to(self._device)[:, None]
        self._attended = torch.cat([self._attended, torch.ones_like(column)], dim=1)
        positions = self._position[None, :, None].expand(self._axes, -1, 1)
        self._hidden = self._policy.hidden_states(Packed(column, positions, self._attended, None), self._cache)[:, -1]
        self._position = self._position + 1
