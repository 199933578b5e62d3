"""On-policy distillation as an algorithm: a teacher's KL (or velocity error) alone, without a policy gradient."""

from __future__ import annotations

import torch

from omni_portable.algorithms.base import as_replay, required
from omni_portable.algorithms.diffusion_losses.distill import flow_matching_mse
from omni_portable.algorithms.diffusion_opd import DiffusionOPDOptions
from omni_portable.algorithms.stochastic import StochasticAlgorithm
from omni_portable.contracts.algorithm import Denoising, LossRows, Replay, Rows


class DiffusionOPD(StochasticAlgorithm):
    """The transitions are the student's own, so the teacher corrects it where it really goes."""

    name = "diffusion_opd"
    options: DiffusionOPDOptions

    def loss(self, replay: Replay | Denoising, rows: Rows) -> LossRows:
        """distill_coef times the objective, per row."""
        if self.options.objective == "kl":
            return super().loss(replay, rows)
        seen = as_replay(replay)
        mse = flow_matching_mse(seen.velocity, required(seen.teacher_velocity, "teacher"))
        return LossRows(self.options.distill_coef * mse, {"actor/distill_fm_mse_loss": mse.detach()})

    def policy_loss(self, replay: Replay, rows: Rows) -> LossRows:
        """None of its own: the KL to the teacher is added by `StochasticAlgorithm.loss`."""
        return LossRows(torch.zeros_like(rows.weight), {})
