"""Rows that are steps of the policy's own sampling: its clean prediction there, and fresh noise on that.

The policy's weights do not change between the first look at a mini-batch and its gradient, so its clean predictions are
computed once, without gradient: a fake score network trains on them, other policies are asked about them, and the
gradient's own forward repeats them bit for bit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

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
from omni_backends.training.noised import NoisedBatch, checked_levels, with_noise
from omni_portable.contracts.algorithm import Denoising, Policy, Rows, ScoreDistillation, TrainBatch
from omni_portable.contracts.errors import CapabilityError, DataError
from omni_portable.contracts.model import DiffusionAdapter
from omni_portable.contracts.rollout import Schedule, Trajectory
from omni_portable.models.policy import split_conditioning
from omni_portable.samplers.noise import noise_seed
from omni_portable.samplers.reduce import expand_rows

FAKE_STREAM = "fake"
"""Keeps the noise of the fake network's updates apart from that of the policy's."""


@dataclass(frozen=True)
class OwnSteps:
    """W steps of the rollouts of B samples, as the policy took them.

    Args:
        latents: (W, B, ...) fp32 on the device, the inputs of the steps.
        sigmas: (W, B) fp32 on the device.
        guidance_scale: of the rollout.
    """

    common: Common
    schedule: Schedule
    latents: torch.Tensor
    sigmas: torch.Tensor
    guidance_scale: float

    def velocity(self, adapter: DiffusionAdapter, step: int) -> torch.Tensor:
        """(B, ...) fp32, what the adapter predicts at step number `step` of every sample."""
        timesteps = self.sigmas[step] * self.schedule.timestep_scale
        negative = self.common.negative if self.guidance_scale != 1.0 else None
        return adapter.velocity(self.latents[step], timesteps, self.common.conditioning, self.guidance_scale, negative)

    def clean(self, velocity: torch.Tensor, step: int) -> torch.Tensor:
        """(B, ...) fp32, the clean samples that a velocity stands for: x0 = x - sigma v."""
        return self.latents[step] - expand_rows(self.sigmas[step], velocity) * velocity


@dataclass(frozen=True)
class GeneratedBatch(MicroBatch):
    """Rows with the policy's gradient, and the noised rows that other policies run in their places.

    Args:
        judged: the same samples with fresh noise.
        teacher_guidance_scale: of the policy 'teacher'; all others judge without guidance.
    """

    common: Common
    own: OwnSteps
    judged: NoisedBatch
    teacher_guidance_scale: float

    @property
    def num_steps(self) -> int:
        """W, the trained steps of each sample."""
        return self.own.latents.shape[0]

    def forward(self, adapter: DiffusionAdapter, step: int) -> Scored:
        """Velocity of the policy at its own step."""
        velocity = self.own.velocity(adapter, step)
        none = torch.full_like(self.own.sigmas[step], torch.nan)
        return Scored(velocity, none, velocity, none, none)

    def compared(self, policy: Policy) -> MicroBatch:
        """The noised rows, with the teacher's guidance in the teacher's turn."""
        return replace(self.judged, guidance_scale=self.teacher_guidance_scale) if policy == "teacher" else self.judged

    def loss_inputs(self, step: int, scored: Scored, others: Mapping[str, Scored]) -> tuple[Denoising, Rows]:
        seen, rows = self.judged.loss_inputs(step, scored, others)
        clean = self.own.clean(scored.velocity, step)
        return replace(seen, clean=take(clean, self.common.kept(clean.device))), rows


class OwnSamples:
    """A mini-batch of generated rows. Its rounds of noise differ, its samples do not.

    Args:
        adapter: runs the current policy.
        size: samples of a micro-batch, at most.

    Raises:
        DataError: steps or noise levels that do not fit the samples.
        CapabilityError: the rollout did not keep the input of every step, or not the teacher's negative prompt.
        ConsistencyError: samples of one micro-batch with other schedules, guidance or latent shapes.
    """

    def __init__(
        self,
        adapter: DiffusionAdapter,
        batch: TrainBatch,
        algorithm: ScoreDistillation,
        size: int,
        device: torch.device,
    ) -> None:
        self._adapter, self._batch, self._algorithm, self._device = adapter, batch, algorithm, device
        self._parts, self._weights = parts(batch, size), sample_weights(batch)
        self._keys = _keys(batch)
        self._samples = denoised(batch.trajectories)
        self._schedule = self._samples[0].request.schedule
        self._steps = chosen_steps(batch, algorithm)
        self._streams = adapter.latent_streams(self._samples[0].request.extent)
        with torch.no_grad():
            self._clean = [self._predict(self._own(part)) for part in self._parts]

    def policy_rows(self) -> Iterator[GeneratedBatch]:
        """Micro-batches for the policy's own step, in order."""
        scale = self._algorithm.teacher_guidance_scale
        for own, judged in self._rounds(self._batch.seed):
            if scale != 1.0 and judged.common.negative is None:
                raise _no_negative(scale)
            yield GeneratedBatch(own.common, own, judged, scale)

    def fake_rows(self, update: int) -> Iterator[NoisedBatch]:
        """Micro-batches for update number `update` of a network that learns to denoise the samples."""
        seed = noise_seed(self._batch.seed, "", update, 0, FAKE_STREAM)
        return (judged for _, judged in self._rounds(seed))

    def _rounds(self, seed: int) -> Iterator[tuple[OwnSteps, NoisedBatch]]:
        levels = checked_levels(self._algorithm, self._schedule, self._keys, seed)
        check_shape("noise levels", levels, tuple(self._steps.shape))
        for part, clean in zip(self._parts, self._clean, strict=True):
            own = self._own(part)
            judged = with_noise(
                common=own.common,
                schedule=own.schedule,
                clean=clean,
                sigmas=levels[part].T.to(self._device, torch.float32).contiguous(),
                streams=self._streams,
                keys=self._keys[part],
                seed=seed,
            )
            yield own, judged

    def _own(self, part: slice) -> OwnSteps:
        trajectories, steps = self._samples[part], self._steps[part]
        check_equal(trajectories, sample_facts)
        request = trajectories[0].request
        sigmas = torch.tensor(request.schedule.sigmas, dtype=torch.float32)
        rows = [[t.latents[int(step)] for t, step in zip(trajectories, column, strict=True)] for column in steps.T]
        return OwnSteps(
            common=pack_common(self._adapter, self._batch, self._weights, part, self._device),
            schedule=request.schedule,
            latents=torch.stack([torch.stack(row) for row in rows]).to(self._device, torch.float32),
            sigmas=sigmas[steps.T].to(self._device).contiguous(),
            guidance_scale=request.guidance_scale,
        )

    def _predict(self, own: OwnSteps) -> torch.Tensor:
        """(W, B, ...) fp32, the policy's clean samples."""
        count = own.latents.shape[0]
        return torch.stack([own.clean(own.velocity(self._adapter, step), step) for step in range(count)])


def chosen_steps(batch: TrainBatch, algorithm: ScoreDistillation) -> torch.Tensor:
    """(N, W) int64, the steps that are trained of each sample.

    Raises:
        DataError / CapabilityError: as :class:`OwnSamples`.
    """
    samples, keys = denoised(batch.trajectories), _keys(batch)
    if len(keys) != len(samples):
        raise DataError(f"{len(keys)} noise keys for {len(samples)} samples")
    _check_recorded(samples)
    schedule = samples[0].request.schedule
    steps = algorithm.generated_steps(schedule, keys, batch.seed)
    check_shape("generated steps", steps, (len(keys), steps.shape[-1]))
    if not bool(((steps >= 0) & (steps < schedule.num_steps)).all()):
        raise DataError(f"algorithm '{algorithm.name}' asked for steps outside a schedule of {schedule.num_steps}")
    return steps


def check_generated(batch: TrainBatch, algorithm: ScoreDistillation, size: int) -> None:
    """Find out before any process starts what would stop one of them half-way (errors as of :class:`OwnSamples`)."""
    samples = denoised(batch.trajectories)
    for part in parts(batch, size):
        check_equal(samples[part], sample_facts)
    chosen_steps(batch, algorithm)
    if algorithm.teacher_guidance_scale != 1.0:
        for sample in samples:
            if split_conditioning(sample.conditioning)[1] is None:
                raise _no_negative(algorithm.teacher_guidance_scale)


def _no_negative(scale: float) -> CapabilityError:
    return CapabilityError(
        f"the teacher's guidance {scale:g} needs the negative prompt's conditioning, which the rollout did not keep",
        remedy="use a sampling plan with keep_negative",
    )


def _keys(batch: TrainBatch) -> list[str]:
    return list(batch.noise_keys) or [t.request.request_id for t in batch.trajectories]


def sample_facts(trajectory: Trajectory) -> Mapping[str, object]:
    """What one forward must have in common."""
    return {
        "schedule": trajectory.request.schedule.fingerprint,
        "latent shape": tuple(trajectory.final_latents.shape),
        "guidance scale": trajectory.request.guidance_scale,
    }


def _check_recorded(trajectories: Sequence[Trajectory]) -> None:
    for trajectory in trajectories:
        request = trajectory.request
        if trajectory.step_indices.tolist() != list(range(request.schedule.num_steps)):
            raise CapabilityError(
                f"request '{request.request_id}' kept {len(trajectory.step_indices)} of its "
                f"{request.schedule.num_steps} steps, this algorithm trains on all of them",
                remedy="use a sampling plan with record_every_step, and a rollout engine that draws samples",
            )
