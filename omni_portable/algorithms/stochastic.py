"""What algorithms on stored stochastic steps share: plan, advantages, KL to the reference, distillation."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from omni_portable.algorithms.advantages import group_advantages
from omni_portable.algorithms.base import DiffusionAlgorithm, as_replay, required
from omni_portable.algorithms.kl import reference_kl
from omni_portable.algorithms.options import AdvantageOptions, StochasticOptions
from omni_portable.algorithms.sampling import stochastic_plan
from omni_portable.contracts.algorithm import Denoising, LossRows, Replay, Rows
from omni_portable.contracts.rollout import SamplingPlan, Schedule


def advantages_by(options: AdvantageOptions, rewards: torch.Tensor, groups: Sequence[str]) -> torch.Tensor:
    """:func:`group_advantages` as the options say; not clamped."""
    return group_advantages(
        rewards,
        groups,
        global_std=options.global_std,
        normalize_by_std=options.normalize_by_std,
        std_ddof=options.std_ddof,
        epsilon=options.advantage_epsilon,
    )


class StochasticAlgorithm(DiffusionAlgorithm):
    """An algorithm whose rows are stored transitions; a subclass gives `policy_loss`.

    Stateless: equal inputs give equal plans and losses.

    Args:
        options: of the algorithm.
    """

    def __init__(self, options: StochasticOptions) -> None:
        self.options = options
        self.requires = options.requires()

    def sampling_plan(self, schedule: Schedule, seed: int, round_number: int = 0) -> SamplingPlan:
        """The rollout round's window, equal for all its samples; see `StochasticOptions.window_mode`."""
        steps = self.options.steps(schedule.num_steps, seed, round_number)
        return stochastic_plan(schedule, self.options.step_kind, self.options.noise_level, steps)

    def advantages(self, rewards: torch.Tensor, groups: Sequence[str]) -> torch.Tensor:
        return advantages_by(self.options, rewards, groups)

    def loss(self, replay: Replay | Denoising, rows: Rows) -> LossRows:
        """policy_loss + kl_coef KL(policy, reference) + distill_coef KL(policy, teacher), one value per row."""
        replay = as_replay(replay)
        result = self.policy_loss(replay, rows)
        loss, metrics = result.loss, {**result.metrics, "actor/pg_loss": result.loss.detach()}
        if self.options.kl_coef:
            kl = self._kl(replay, required(replay.reference_mean, "reference"), rows)
            loss, metrics["actor/kl_loss"] = loss + self.options.kl_coef * kl, kl.detach()
        if self.options.distill_coef:
            kl = self._kl(replay, required(replay.teacher_mean, "teacher"), rows)
            loss, metrics["actor/distill_kl_loss"] = loss + self.options.distill_coef * kl, kl.detach()
        return LossRows(loss, metrics)

    def policy_loss(self, replay: Replay, rows: Rows) -> LossRows:
        """The algorithm's own loss per row."""
        raise NotImplementedError(f"algorithm '{self.name}' has no policy loss")

    def _kl(self, replay: Replay, other_mean: torch.Tensor, rows: Rows) -> torch.Tensor:
        return reference_kl(replay.mean, other_mean, replay.std, replay.dt, rows.step_kind, self.options.kl_kind)
