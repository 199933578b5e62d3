"""Choosing the next token: a function of the row's own logits and one uniform number.

The uniform number of (seed, prompt, sample, position) comes from a counter-based generator on the CPU, so a row's draws
depend on its request alone; its logits may still differ in their last bits between batch shapes. The inverse of the
cumulative distribution is taken in two levels on the host, because a cumulative sum over a whole vocabulary is not
deterministic on every accelerator: first among sums of blocks, then inside one block.
"""

from __future__ import annotations

import math

import numpy as np
import torch

from omni_portable.contracts.tokens import TokenRequest
from omni_portable.samplers.noise import noise_seed

STREAM = "tokens"
BLOCK = 512
"""Tokens of one block."""


def uniforms(request: TokenRequest) -> torch.Tensor:
    """(max_new_tokens,) fp64 in [0, 1) on the CPU; the first ones do not depend on how many there are."""
    seed = noise_seed(request.seed, request.prompt_id, request.sample_index, 0, STREAM)
    drawn = np.random.Generator(np.random.Philox(key=seed)).random(request.max_new_tokens)
    return torch.from_numpy(drawn)


def choose(
    logits: torch.Tensor, draws: torch.Tensor, *, temperature: float, top_p: float = 1.0, top_k: int = 0
) -> tuple[torch.Tensor, torch.Tensor]:
    """One token for each row.

    Args:
        logits: (B, V) fp32.
        draws: (B,) fp64 in [0, 1) on the CPU; ignored where temperature is 0, which takes the most likely token.
        top_p: keep the most likely tokens whose probabilities first add up to this; the most likely one always stays.
        top_k: keep this many of the most likely tokens; 0 keeps all.

    Returns:
        (B,) int64 tokens on the device of the logits, and their (B,) fp32 log-probs under softmax(logits /
        temperature), untruncated (at temperature 1 where it is 0).
    """
    log_probs = torch.log_softmax(logits / (temperature or 1.0), dim=-1)
    if temperature == 0.0:
        ids = logits.argmax(dim=-1)
    else:
        ids = _invert(_truncate(log_probs.exp(), top_p, top_k), draws).to(logits.device)
    return ids, log_probs.gather(-1, ids[:, None])[:, 0]


def _truncate(probabilities: torch.Tensor, top_p: float, top_k: int) -> torch.Tensor:
    """Probabilities (B, V) with zeros where tokens are left out; not renormalised."""
    if 0 < top_k < probabilities.shape[-1]:
        least = probabilities.topk(top_k, dim=-1).values[:, -1:]
        probabilities = torch.where(probabilities >= least, probabilities, 0.0)
    if top_p < 1.0:
        ordered, order = probabilities.cpu().sort(dim=-1, descending=True, stable=True)
        before = ordered.double().cumsum(-1) - ordered.double()
        total = ordered.double().sum(-1, keepdim=True)
        kept = torch.where(before < top_p * total, ordered, 0.0)
        probabilities = torch.zeros_like(kept).scatter(-1, order, kept)
    return probabilities


def _invert(weights: torch.Tensor, draws: torch.Tensor) -> torch.Tensor:
    """(B,) int64 on the CPU: the first token whose cumulative weight exceeds draw * total."""
    rows, size = weights.shape
    blocks = math.ceil(size / BLOCK)
    padded = torch.nn.functional.pad(weights, (0, blocks * BLOCK - size)).reshape(rows, blocks, BLOCK)
    sums = padded.sum(dim=-1).cpu().double()
    block, rest = _first_above(sums, draws)
    inside = padded[torch.arange(rows, device=padded.device), block.to(padded.device)].cpu().double()
    token, _ = _first_above(inside, rest)
    return block * BLOCK + token


def _first_above(weights: torch.Tensor, draws: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Index (B,) of the first cumulative sum of (B, N) fp64 above draw * total, and how far into that weight the draw
    reaches, in [0, 1)."""
    sums = weights.cumsum(-1)
    target = draws[:, None] * sums[:, -1:]
    last = (weights > 0).long().cumsum(-1).argmax(-1, keepdim=True)  # a draw next to 1 may round up to the total
    index = torch.minimum(torch.searchsorted(sums, target, right=True), last)
    own = weights.gather(-1, index)
    reached = (target - (sums.gather(-1, index) - own)) / own
    return index[:, 0], reached[:, 0].clamp(0.0, 1.0 - 2.0**-53)
