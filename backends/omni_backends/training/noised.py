"""Rows that are clean samples with fresh noise: x = (1 - sigma) x0 + sigma noise, and the velocity predicted there.

Noise and noise levels follow from (round, key of the sample, row number), so that a run can be repeated, a pair shares
them, and neither packing nor the number of processes changes them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch

from omni_backends.training.micro import (
    Common,
    MicroBatch,
    Scored,
    check_equal,
    check_shape,
    denoised,
    pack_common,
    parts,
    sample_weights,
    take,
)
from omni_portable.contracts.algorithm import Algorithm, Denoising, Rows, TrainBatch
from omni_portable.contracts.errors import DataError
from omni_portable.contracts.model import DiffusionAdapter
from omni_portable.contracts.rollout import Schedule
from omni_portable.samplers.noise import noise_seed, normal
from omni_portable.samplers.reduce import expand_rows

STREAM = "train"
"""Keeps training noise apart from the rollout's."""


@dataclass(frozen=True)
class NoisedBatch(MicroBatch):
    """B samples with W rows each.

    Args:
        schedule: for the model's timestep scale.
        clean: (W, B, ...) fp32 on the device.
        noise: (W, B, ...) fp32 on the device.
        sigmas: (W, B) fp32 on the device.
        streams: name -> [start, stop) in a sample's flattened latents.
        guidance_scale: 1, unless it is a guided policy's turn: rows train the conditional prediction.
    """

    common: Common
    schedule: Schedule
    clean: torch.Tensor
    noise: torch.Tensor
    sigmas: torch.Tensor
    streams: Mapping[str, tuple[int, int]]
    guidance_scale: float = 1.0

    @property
    def num_steps(self) -> int:
        """W, the noise levels of each sample."""
        return self.sigmas.shape[0]

    def forward(self, adapter: DiffusionAdapter, step: int) -> Scored:
        """Velocity at noise level `step` of every sample."""
        timesteps = self.sigmas[step] * self.schedule.timestep_scale
        negative = self.common.negative if self.guidance_scale != 1.0 else None
        velocity = adapter.velocity(
            self._noisy(step), timesteps, self.common.conditioning, self.guidance_scale, negative
        )
        none = torch.full_like(self.sigmas[step], torch.nan)
        return Scored(velocity, none, velocity, none, none)

    def loss_inputs(self, step: int, scored: Scored, others: Mapping[str, Scored]) -> tuple[Denoising, Rows]:
        rows = self.common.kept(self.clean.device)
        velocities = {f"{policy}_velocity": take(other.velocity, rows) for policy, other in others.items()}
        denoising = Denoising(
            velocity=take(scored.velocity, rows),
            clean=take(self.clean[step], rows),
            noise=take(self.noise[step], rows),
            noisy=take(self._noisy(step), rows),
            sigma=take(self.sigmas[step], rows),
            streams=self.streams,
            **velocities,
        )
        weight = take(self.common.weights, rows)
        return denoising, Rows(
            old_log_prob=torch.full_like(weight, torch.nan),
            advantage=take(self.common.advantages, rows),
            weight=weight,
            step_kind="ode",
            sample_ids=tuple(i for i, kept in zip(self.common.request_ids, self.common.trained, strict=True) if kept),
            unit=take(self.common.unit, rows),
        )

    def _noisy(self, step: int) -> torch.Tensor:
        clean = self.clean[step]
        sigma = expand_rows(self.sigmas[step], clean)
        return (1.0 - sigma) * clean + sigma * self.noise[step]


def noised_batches(
    adapter: DiffusionAdapter, batch: TrainBatch, algorithm: Algorithm, size: int, device: torch.device
) -> Iterator[NoisedBatch]:
    """The batch in contiguous parts of at most `size` samples, in order; each is packed when it is asked for.

    Raises:
        DataError: noise keys or levels that do not fit the samples.
        ConsistencyError: samples of one micro-batch with other schedules or latent shapes.
    """
    slices = parts(batch, size)
    weights = sample_weights(batch)
    keys = list(batch.noise_keys) or [t.request.request_id for t in batch.trajectories]
    if len(keys) != len(batch.trajectories):
        raise DataError(f"{len(keys)} noise keys for {len(batch.trajectories)} samples")
    samples = denoised(batch.trajectories)
    levels = checked_levels(algorithm, samples[0].request.schedule, keys, batch.seed)
    streams = adapter.latent_streams(samples[0].request.extent)
    for part in slices:
        trajectories = samples[part]
        check_equal(
            trajectories,
            lambda t: {"schedule": t.request.schedule.fingerprint, "latent shape": tuple(t.final_latents.shape)},
        )
        clean = torch.stack([t.final_latents.detach() for t in trajectories]).to(device, torch.float32)
        yield with_noise(
            common=pack_common(adapter, batch, weights, part, device),
            schedule=trajectories[0].request.schedule,
            clean=clean.expand(levels.shape[1], *clean.shape),
            sigmas=levels[part].T.to(device, torch.float32).contiguous(),
            streams=streams,
            keys=keys[part],
            seed=batch.seed,
        )


def checked_levels(algorithm: Algorithm, schedule: Schedule, keys: Sequence[str], seed: int) -> torch.Tensor:
    """(N, W) fp32 noise levels as the algorithm wants them; `DataError` where they do not fit the samples."""
    levels = algorithm.noise_levels(schedule, keys, seed)
    check_shape("noise levels", levels, (len(keys), levels.shape[-1]))
    if not bool(((levels > 0) & (levels <= 1)).all()):
        raise DataError(f"algorithm '{algorithm.name}' asked for noise levels outside (0, 1]")
    return levels


def with_noise(
    *,
    common: Common,
    schedule: Schedule,
    clean: torch.Tensor,
    sigmas: torch.Tensor,
    streams: Mapping[str, tuple[int, int]],
    keys: Sequence[str],
    seed: int,
) -> NoisedBatch:
    """Rows of clean samples (W, B, ...) at levels (W, B), with the noise of (seed, key, row number)."""
    shape = clean.shape[2:]
    drawn = [
        torch.stack([normal(noise_seed(seed, key, 0, row, STREAM), shape) for key in keys])
        for row in range(sigmas.shape[0])
    ]
    return NoisedBatch(common, schedule, clean, torch.stack(drawn).to(clean.device), sigmas, streams)
