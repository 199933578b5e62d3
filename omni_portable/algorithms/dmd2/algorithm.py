"""DMD2 as an algorithm: the student's plan, its trained steps and noise levels, and both networks' losses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from omni_portable.algorithms.base import DiffusionAlgorithm, as_denoising, required
from omni_portable.algorithms.diffusion_losses.distill import flow_matching_mse
from omni_portable.algorithms.diffusion_losses.dmd import (
    clean_prediction,
    distribution_matching_gradient,
    distribution_matching_loss,
)
from omni_portable.algorithms.dmd2 import DMD2Options
from omni_portable.algorithms.noise_levels import draw_uniform_levels, shuffled
from omni_portable.contracts.algorithm import Denoising, LossRows, Replay, RowKind, Rows
from omni_portable.contracts.rollout import SamplingPlan, Schedule, StepKind
from omni_portable.samplers.reduce import row_mean


class DMD2(DiffusionAlgorithm):
    """See the package."""

    name = "dmd2"
    row_kind: RowKind = "generated"

    def __init__(self, options: DMD2Options) -> None:
        self.options = options
        self.requires = options.requires()
        self.teacher_guidance_scale = options.teacher_guidance_scale

    def schedule(self, published: Schedule) -> Schedule:
        self.options.check(published.num_steps)
        if not self.options.sigmas:
            return published
        levels = np.array([*self.options.sigmas, 0.0], dtype=np.float32)  # as they are computed with
        return replace(published, sigmas=tuple(float(level) for level in levels), key=f"dmd2 {self.options.sigmas}")

    def sampling_plan(self, schedule: Schedule, seed: int, round_number: int = 0) -> SamplingPlan:
        """The student's own sampling, with the input of every step and, for a guided teacher, the negative prompt."""
        return self._plan(schedule, kept=True)

    def validation_plan(self, schedule: Schedule) -> SamplingPlan:
        """As the student was trained to sample."""
        return self._plan(schedule, kept=False)

    def generated_steps(self, schedule: Schedule, keys: Sequence[str], seed: int) -> torch.Tensor:
        count = self.options.steps_per_sample
        return torch.tensor([shuffled(schedule.num_steps, key, seed)[:count] for key in keys], dtype=torch.int64)

    def noise_levels(self, schedule: Schedule, keys: Sequence[str], seed: int) -> torch.Tensor:
        o = self.options
        return draw_uniform_levels(o.sigma_min, o.sigma_max, o.sigma_shift, o.steps_per_sample, keys, seed)

    def loss(self, replay: Replay | Denoising, rows: Rows) -> LossRows:
        """The student's: see :func:`distribution_matching_gradient`."""
        seen = as_denoising(replay)
        teacher, fake = required(seen.teacher_velocity, "teacher"), required(seen.fake_velocity, "fake")
        gradient = distribution_matching_gradient(
            seen.clean, seen.noisy, seen.sigma, teacher, fake, normaliser_min=self.options.normaliser_min
        )
        loss = distribution_matching_loss(seen.clean, gradient)
        wanted = clean_prediction(seen.noisy, teacher, seen.sigma)
        return LossRows(
            loss,
            {
                "actor/dmd_gradient": row_mean(gradient.abs()),
                "actor/teacher_distance": row_mean((seen.clean.detach() - wanted).abs()),
                "actor/fake_teacher_distance": row_mean(
                    (clean_prediction(seen.noisy, fake, seen.sigma) - wanted).abs()
                ),
            },
        )

    def fake_loss(self, seen: Denoising, rows: Rows) -> LossRows:
        """The fake network's: flow matching on the student's samples."""
        return LossRows(flow_matching_mse(seen.velocity, seen.noise - seen.clean), {})

    def _plan(self, schedule: Schedule, kept: bool) -> SamplingPlan:
        """Kernel 'cps' at noise level 1 is x' = (1 - sigma') x0 + sigma' e: all noise is replaced."""
        between = tuple(range(schedule.num_steps - 1)) if self.options.renoise else ()
        kind: StepKind = "cps" if between else "ode"
        return SamplingPlan(
            kind=kind,
            noise_level=1.0 if between else 0.0,
            stochastic_steps=between,
            record_transitions=False,
            record_every_step=kept,
            keep_negative=kept and self.teacher_guidance_scale != 1.0,
        )
