"""DPO and IPO on responses, given or drawn (arXiv 2305.18290, 2310.12036). Loads without torch.

    L = -(1 - s) log sigmoid(beta h) - s log sigmoid(-beta h)       loss 'sigmoid', s = label_smoothing
    L = (h - 1 / (2 beta))^2                                        loss 'ipo'
    h = (lp_chosen - lp_rejected) - (lp_chosen,ref - lp_rejected,ref)

lp is the sum of a response's log-probs over its tokens, or their mean (`length_normalized`). Drawn pairs are the best
and the worst response of a prompt.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from omni_portable.algorithms.options import require
from omni_portable.contracts.algorithm import Requires
from omni_portable.contracts.registry import PluginSpec


@dataclass(frozen=True)
class TokenDPOOptions:
    """Keys of `algorithm` for 'token_dpo'.

    Given pairs are groups of two whose reward is the preference (`rollout.engine=dataset`); online, the best and the
    worst response of each prompt make a pair."""

    beta: float = 0.1
    """Strength of the pull to the reference."""
    loss: Literal["sigmoid", "ipo"] = "sigmoid"
    """'sigmoid' is DPO, 'ipo' the squared loss of IPO."""
    label_smoothing: float = 0.0
    """Share of preferences taken to be wrong ('sigmoid'), below 0.5."""
    length_normalized: bool = False
    """Means over tokens instead of sums, as IPO is usually run."""
    keep_ties: bool = False
    """Train on groups whose rewards are all equal too (the first is then chosen, the last rejected)."""

    def __post_init__(self) -> None:
        """Refuse what prefers nothing (`ConfigError`)."""
        require(self.beta > 0.0, "beta", self.beta, "positive")
        require(0.0 <= self.label_smoothing < 0.5, "label_smoothing", self.label_smoothing, "at least 0 and below 0.5")

    def requires(self) -> Requires:
        """Pairs, and the reference that gains are measured against."""
        return Requires(reference_policy=True, preference_pairs=True)


SPEC = PluginSpec(
    name="token_dpo",
    summary="DPO / IPO: prefers the chosen response of a pair by how much likelier than under the reference it is",
    target="omni_portable.algorithms.token_dpo.algorithm:TokenDPO",
    options=TokenDPOOptions,
    capabilities={"kind": "token", "needs_log_probs": False, "min_group_size": 2, "trained_per_group": 2},
)
