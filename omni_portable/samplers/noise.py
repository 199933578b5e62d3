"""Noise that belongs to the sample, not to the batch, the rank or the device.

Drawn on the CPU from a counter-based generator (Philox) keyed by (run seed, prompt, sample, step, stream). The normal
variates come from NumPy's fp64 ziggurat, whose common path is a table look-up and a multiplication, and are then
rounded to fp32: vectorised fp32 methods go through log and cos routines that differ between host instruction sets.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
import torch

from omni_portable.contracts.rollout import RolloutRequest

INITIAL = -1
"""The step whose noise makes the initial latents."""


def noise_seed(seed: int, prompt_id: str, sample_index: int, step: int, stream: str = "latents") -> int:
    """Seed in [0, 2^63) of one draw.

    Args:
        seed: of the rollout round.
        prompt_id / sample_index: whose noise it is.
        step: denoising step, or :data:`INITIAL`.
        stream: keeps draws of one step apart where a sample has several ('latents', 'audio', ...).
    """
    # Length-prefixed so that no two different keys spell the same bytes.
    text = prompt_id.encode("utf-8")
    name = stream.encode("utf-8")
    key = b"%d|%d|%s|%d|%d|%d|%s" % (seed, len(text), text, sample_index, step, len(name), name)
    return int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "big") >> 1


def normal(seed: int, shape: Sequence[int]) -> torch.Tensor:
    """Standard normal numbers of `shape`, fp32 on the CPU, a pure function of (seed, number of elements)."""
    generator = np.random.Generator(np.random.Philox(key=seed))
    return torch.from_numpy(generator.standard_normal(tuple(shape)).astype(np.float32))


def unit_noise(
    requests: Sequence[RolloutRequest], step: int, shape: Sequence[int], stream: str = "latents"
) -> torch.Tensor:
    """(B, *shape) fp32 on the CPU, one row per request; `step` is the denoising step or :data:`INITIAL`.

    A row depends on its own request alone, so packing, ranks and order cannot change it. A prompt that appears twice in
    one rollout needs different prompt ids or sample indices to get different noise.
    """
    if not requests:
        return torch.empty((0, *shape), dtype=torch.float32)
    seeds = [noise_seed(r.seed, r.prompt_id, r.sample_index, step, stream) for r in requests]
    return torch.stack([normal(seed, shape) for seed in seeds])
