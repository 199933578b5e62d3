"""DPO and IPO as an algorithm: pairs from scored groups, one loss for both rows of a pair."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from omni_portable.algorithms.advantages import group_advantages
from omni_portable.algorithms.base import required
from omni_portable.algorithms.pairs import preferred_pairs
from omni_portable.algorithms.token_dpo import TokenDPOOptions
from omni_portable.algorithms.token_losses.preference import dpo_loss, dpo_margins, sequence_log_prob
from omni_portable.contracts.algorithm import LossRows, Policy, Selection
from omni_portable.contracts.tokens import TokenReplay, TokenRowKind, TokenRows


class TokenDPO:
    """See :func:`dpo_loss`."""

    name = "token_dpo"
    row_kind: TokenRowKind = "given"
    rollout_policy: Policy = "current"
    needs_entropy = False
    needs_logits = False
    dynamic_sampling = False
    refill_rounds = 0

    def __init__(self, options: TokenDPOOptions) -> None:
        self.options = options
        self.requires = options.requires()

    def shape_rewards(self, rewards: torch.Tensor, lengths: torch.Tensor, budgets: torch.Tensor) -> torch.Tensor:
        return rewards

    def advantages(self, rewards: torch.Tensor, groups: Sequence[str]) -> torch.Tensor:
        """Only logged: a pair is trained on by its order."""
        return group_advantages(rewards, groups)

    def select(self, rewards: torch.Tensor, groups: Sequence[str]) -> Selection:
        """Best and worst of every group, adjacent; groups without a preference are left out (`keep_ties`)."""
        return Selection(preferred_pairs(groups, rewards.tolist(), self.options.keep_ties), unit=2)

    def row_weights(self, mask: torch.Tensor, weights: torch.Tensor, budgets: torch.Tensor) -> torch.Tensor:
        """One for each response."""
        return weights

    def total_weight(self, lengths: torch.Tensor, weights: torch.Tensor) -> float:
        return float(weights.double().sum())

    def old_policy_decay(self, round_number: int) -> float | None:
        return 0.0

    def loss(self, replay: TokenReplay, rows: TokenRows) -> LossRows:
        """The pair's loss on both of its rows, so that the mean over rows is the mean over pairs."""
        mean, reference = self.options.length_normalized, required(replay.reference_log_prob, "reference")
        policy = sequence_log_prob(replay.log_prob, replay.mask, mean=mean)
        frozen = sequence_log_prob(reference, replay.mask, mean=mean)
        margin = dpo_margins(policy, frozen)
        loss = dpo_loss(
            margin, beta=self.options.beta, label_smoothing=self.options.label_smoothing, kind=self.options.loss
        )
        gain = self.options.beta * (policy - frozen).detach()
        pairs = {
            "actor/dpo_accuracy": (margin > 0).float(),
            "actor/dpo_margin": self.options.beta * margin.detach(),
            "actor/dpo_chosen_reward": gain[0::2],
            "actor/dpo_rejected_reward": gain[1::2],
        }
        metrics = {name: values.repeat_interleave(2) for name, values in pairs.items()}
        return LossRows(loss.repeat_interleave(2), metrics)
