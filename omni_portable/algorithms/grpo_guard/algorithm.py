"""GRPO-Guard as an algorithm: the loss needs the means of the policy that drew the rollout."""

from __future__ import annotations

from omni_portable.algorithms.base import required
from omni_portable.algorithms.diffusion_losses.guard import grpo_guard_loss
from omni_portable.algorithms.grpo_guard import GRPOGuardOptions
from omni_portable.algorithms.stochastic import StochasticAlgorithm
from omni_portable.contracts.algorithm import LossRows, Replay, Rows


class GRPOGuard(StochasticAlgorithm):
    """See :func:`grpo_guard_loss`."""

    name = "grpo_guard"
    options: GRPOGuardOptions

    def policy_loss(self, replay: Replay, rows: Rows) -> LossRows:
        return grpo_guard_loss(
            replay.log_prob,
            rows.old_log_prob,
            rows.advantage,
            replay.mean,
            required(replay.old_mean, "old"),
            replay.std,
            -replay.dt,
            clip_ratio=self.options.clip_ratio,
            advantage_clip=self.options.advantage_clip,
            importance_weight=rows.importance_weight,
        )
