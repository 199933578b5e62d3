"""Log-probs of responses from one full forward: the same function for a rollout's record and an actor's replay.

Equal rows in equal order give equal bits, so before any update the ratio of the two is exactly 1.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.utils.checkpoint import checkpoint

from omni_portable.contracts.tokens import TokenRow, TokenScores
from omni_portable.models.autoregressive.packing import (
    pack_sequences,
    padded_responses,
    response_columns,
    response_mask,
)
from omni_portable.models.autoregressive.policy import LanguagePolicy

LOGITS_AT_ONCE = 1 << 26
"""Elements of logits that exist at one time (256 MiB in fp32); a longer batch computes them in parts, and again in the
backward pass."""


def score_rows(
    policy: LanguagePolicy,
    rows: Sequence[TokenRow],
    temperature: float,
    device: torch.device,
    *,
    entropy: bool = False,
    logits: bool = False,
) -> TokenScores:
    """See :meth:`omni_portable.contracts.tokens.AutoregressiveAdapter.score`."""
    hidden = policy.hidden_states(pack_sequences(rows, device))
    mask, ids = response_mask(rows, device), padded_responses(rows, device)
    columns = response_columns(rows, device)[..., None].expand(-1, -1, hidden.shape[-1])
    states = hidden.gather(1, columns)
    if logits:
        whole = policy.logits(states) / temperature
        log_prob, spread = _selected(whole, ids, entropy)
        return TokenScores(log_prob, mask, spread if entropy else None, whole)
    flat, chosen = states.flatten(0, 1), ids.flatten()
    part = max(1, LOGITS_AT_ONCE // policy.lm_head.weight.shape[0])
    parts = [slice(first, first + part) for first in range(0, len(flat), part)]

    def one(some: torch.Tensor, wanted: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return _selected(policy.logits(some) / temperature, wanted, entropy)

    again = len(parts) > 1 and torch.is_grad_enabled()
    found = [
        checkpoint(one, flat[piece], chosen[piece], use_reentrant=False) if again else one(flat[piece], chosen[piece])
        for piece in parts
    ]
    log_prob = torch.cat([values for values, _ in found]).view(ids.shape)
    return TokenScores(log_prob, mask, torch.cat([e for _, e in found]).view(ids.shape) if entropy else None)


def _selected(logits: torch.Tensor, ids: torch.Tensor, entropy: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probs of `ids` (...) under logits (..., V), and the entropy (...) where asked for (else the log-probs)."""
    log_probs = torch.log_softmax(logits, dim=-1)
    chosen = log_probs.gather(-1, ids[..., None])[..., 0]
    if not entropy:
        return chosen, chosen
    return chosen, -(log_probs.exp() * log_probs).sum(dim=-1)
