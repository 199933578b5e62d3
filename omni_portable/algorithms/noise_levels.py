"""Noise levels for training on clean samples: pure functions of (key, seed), so that nothing else can change them."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence

import torch

from omni_portable.algorithms.options import NoiseLevelOptions
from omni_portable.contracts.rollout import Schedule
from omni_portable.samplers.noise import noise_seed, normal


def draw_noise_levels(options: NoiseLevelOptions, schedule: Schedule, keys: Sequence[str], seed: int) -> torch.Tensor:
    """(N, W) fp32 sigmas in (0, 1]; equal keys get equal rows.

    'schedule': W = max(1, int(T timestep_fraction)) of the schedule's T sigmas above 0, in an order of the key's own.
    'logit_normal': W = timesteps_per_sample values sigmoid(n), n ~ N(0, 1), shifted by sigma_shift.
    """
    if options.timesteps == "schedule":
        sigmas = schedule.sigmas[:-1]
        count = max(1, int(len(sigmas) * options.timestep_fraction))
        rows = [[sigmas[step] for step in shuffled(len(sigmas), key, seed)[:count]] for key in keys]
        return torch.tensor(rows, dtype=torch.float32)
    drawn = torch.stack([normal(noise_seed(seed, key, 0, 0, "level"), (options.timesteps_per_sample,)) for key in keys])
    return _shifted(drawn.double().sigmoid(), options.sigma_shift)


def draw_uniform_levels(
    low: float, high: float, shift: float, count: int, keys: Sequence[str], seed: int
) -> torch.Tensor:
    """(N, count) fp32 sigmas s, uniform in [low, high), as shift s / (1 + (shift - 1) s); equal keys get equal rows.

    Args:
        low / high: 0 < low < high <= 1.
    """
    rows = [[math.ldexp(noise_seed(seed, key, 0, row, "uniform"), -63) for row in range(count)] for key in keys]
    return _shifted(low + (high - low) * torch.tensor(rows, dtype=torch.float64), shift)


def _shifted(sigma: torch.Tensor, shift: float) -> torch.Tensor:
    shifted = (shift * sigma / (1.0 + (shift - 1.0) * sigma)).float()
    return shifted.clamp(min=math.ldexp(1.0, -20), max=1.0)


def shuffled(count: int, key: str, seed: int) -> list[int]:
    """The key's permutation of range(count), by hash: the stream of a library's generator may change."""
    text = key.encode()

    def rank(step: int) -> bytes:
        return hashlib.blake2b(b"level|%d|%d|%d|%s" % (seed, step, len(text), text), digest_size=16).digest()

    return sorted(range(count), key=rank)
