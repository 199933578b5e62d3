"""Flow-GRPO as an algorithm of the house: plans, advantages and loss from one set of options."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from omni_portable.algorithms.advantages import group_advantages
from omni_portable.algorithms.base import DiffusionAlgorithm, as_replay, required
from omni_portable.algorithms.flow_grpo.loss import flow_grpo_loss
from omni_portable.algorithms.flow_grpo.options import FlowGRPOOptions
from omni_portable.algorithms.kl import reference_kl
from omni_portable.algorithms.sampling import stochastic_plan
from omni_portable.contracts.algorithm import Denoising, LossRows, Replay, Requires, Rows
from omni_portable.contracts.rollout import SamplingPlan, Schedule


class FlowGRPO(DiffusionAlgorithm):
    """Implements `contracts.algorithm.Algorithm`; stateless, so equal inputs give equal plans and losses."""

    name = "flow_grpo"

    def __init__(self, options: FlowGRPOOptions) -> None:
        self.options = options
        self.requires = Requires(reference_policy=options.kl_coef > 0.0)

    def sampling_plan(self, schedule: Schedule, seed: int, round_number: int = 0) -> SamplingPlan:
        """The rollout round's window, equal for all its samples; see `FlowGRPOOptions.window_mode`."""
        steps = self.options.steps(schedule.num_steps, seed)
        return stochastic_plan(schedule, self.options.step_kind, self.options.noise_level, steps)

    def advantages(self, rewards: torch.Tensor, groups: Sequence[str]) -> torch.Tensor:
        o = self.options
        return group_advantages(
            rewards,
            groups,
            global_std=o.global_std,
            normalize_by_std=o.normalize_by_std,
            std_ddof=o.std_ddof,
            epsilon=o.advantage_epsilon,
        )

    def loss(self, replay: Replay | Denoising, rows: Rows) -> LossRows:
        """Policy-gradient loss plus kl_coef times the KL to the reference policy, one value per row."""
        replay = as_replay(replay)
        result = flow_grpo_loss(
            replay.log_prob,
            rows.old_log_prob,
            rows.advantage,
            clip_ratio=self.options.clip_ratio,
            advantage_clip=self.options.advantage_clip,
            importance_weight=rows.importance_weight,
        )
        metrics = {**result.metrics, "actor/pg_loss": result.loss.detach()}
        if self.options.kl_coef == 0.0:
            return LossRows(result.loss, metrics)
        kl = self._reference_kl(replay, rows)
        return LossRows(result.loss + self.options.kl_coef * kl, {**metrics, "actor/kl_loss": kl.detach()})

    def _reference_kl(self, replay: Replay, rows: Rows) -> torch.Tensor:
        reference = required(replay.reference_mean, "reference")
        return reference_kl(replay.mean, reference, replay.std, replay.dt, rows.step_kind, self.options.kl_kind)
