"""What token algorithms answer alike; an algorithm overrides what is its own."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from omni_portable.algorithms.advantages import group_advantages
from omni_portable.algorithms.base import required
from omni_portable.algorithms.token_losses.aggregation import masked, row_weights, total_weight
from omni_portable.algorithms.token_losses.kl_penalty import kl_penalty
from omni_portable.algorithms.token_losses.names import ESTIMATORS
from omni_portable.algorithms.token_losses.policy_gradient import TokenTerms, ppo_clip_terms
from omni_portable.algorithms.token_options import ClipOptions, DualClipOptions, TokenOptions
from omni_portable.contracts.algorithm import LossRows, Policy, Requires, Selection
from omni_portable.contracts.tokens import TokenReplay, TokenRowKind, TokenRows


class TokenAlgorithmBase:
    """Defaults of `contracts.tokens.TokenAlgorithm`: on-policy, every sample is trained on, a loss for each token.

    Stateless: equal inputs give equal losses. A subclass gives `policy_terms`.

    Args:
        options: of the algorithm.
    """

    name: str
    row_kind: TokenRowKind = "tokens"
    rollout_policy: Policy = "current"
    needs_logits = False
    dynamic_sampling = False
    refill_rounds = 0

    def __init__(self, options: TokenOptions) -> None:
        self.options = options
        self.requires: Requires = options.requires()
        self.needs_entropy = options.entropy_coef > 0.0

    def shape_rewards(self, rewards: torch.Tensor, lengths: torch.Tensor, budgets: torch.Tensor) -> torch.Tensor:
        """As they were scored."""
        return rewards

    def advantages(self, rewards: torch.Tensor, groups: Sequence[str]) -> torch.Tensor:
        return group_advantages(rewards, groups, global_std=False)

    def select(self, rewards: torch.Tensor, groups: Sequence[str]) -> Selection:
        """All samples, in order."""
        return Selection(range(len(groups)))

    def row_weights(self, mask: torch.Tensor, weights: torch.Tensor, budgets: torch.Tensor) -> torch.Tensor:
        return row_weights(mask, weights, self.options.aggregation, budgets)

    def total_weight(self, lengths: torch.Tensor, weights: torch.Tensor) -> float:
        return total_weight(lengths, weights, self.options.aggregation)

    def old_policy_decay(self, round_number: int) -> float | None:
        """The old policy is the one that drew the rollout: copied after every round."""
        return 0.0

    def loss(self, replay: TokenReplay, rows: TokenRows) -> LossRows:
        """policy_terms + kl_coef KL(policy, reference) - entropy_coef entropy, one value per token; 0 on padding."""
        terms = self.policy_terms(replay, rows)
        loss = terms.loss
        if rows.importance_weight is not None:
            loss = loss * rows.importance_weight.detach()
        metrics = {**terms.metrics, "actor/pg_loss": loss.detach()}
        if self.options.kl_coef:
            reference = required(replay.reference_log_prob, "reference")
            kl = kl_penalty(replay.log_prob, reference, ESTIMATORS[self.options.kl_estimator])
            loss, metrics["actor/kl_loss"] = loss + self.options.kl_coef * kl, kl.detach()
        if replay.entropy is not None:
            loss = loss - self.options.entropy_coef * replay.entropy
            metrics["actor/entropy"] = replay.entropy.detach()
        return LossRows(masked(loss, replay.mask), metrics)

    def policy_terms(self, replay: TokenReplay, rows: TokenRows) -> TokenTerms:
        """The algorithm's own loss per token."""
        raise NotImplementedError(f"algorithm '{self.name}' has no policy loss")


class GroupClipAlgorithm(TokenAlgorithmBase):
    """Advantages within groups, as the options say."""

    options: ClipOptions

    def advantages(self, rewards: torch.Tensor, groups: Sequence[str]) -> torch.Tensor:
        return group_advantages(
            rewards,
            groups,
            global_std=False,
            normalize_by_std=self.options.normalize_by_std,
            std_ddof=self.options.std_ddof,
            epsilon=self.options.advantage_epsilon,
        )


class DualClipAlgorithm(GroupClipAlgorithm):
    """PPO's clipped ratio per token with dual clip: GRPO, Dr. GRPO and DAPO are this with other settings."""

    options: DualClipOptions

    def policy_terms(self, replay: TokenReplay, rows: TokenRows) -> TokenTerms:
        """See :func:`ppo_clip_terms`."""
        return ppo_clip_terms(
            replay.log_prob,
            rows.old_log_prob,
            rows.advantage[:, None],
            clip_low=self.options.clip_low,
            clip_high=self.options.clip_high,
            dual_clip=self.options.dual_clip,
        )
