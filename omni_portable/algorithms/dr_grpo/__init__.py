"""Dr. GRPO (arXiv 2503.20783): GRPO without its biases of length and of difficulty. Loads without torch.

    L   = mean over responses of (sum over tokens of l) / max_new_tokens
    l   = max(-A rho, -A clip(rho, 1 - clip_low, 1 + clip_high)), at most -A dual_clip where A < 0
    rho = exp(lp - lp_old) of a token
    A   = r - mean of the prompt's group, the same at every token

So A is not divided by the group's std, nor a response's loss by its own length. kl_coef KL(policy, reference) is added.
"""

from __future__ import annotations

from dataclasses import dataclass

from omni_portable.algorithms.token_losses.names import Aggregation
from omni_portable.algorithms.token_options import DualClipOptions
from omni_portable.contracts.registry import PluginSpec


@dataclass(frozen=True)
class DrGRPOOptions(DualClipOptions):
    """Keys of `algorithm` for 'dr_grpo': those of 'grpo', with other defaults."""

    aggregation: Aggregation = "seq-mean-token-sum-norm"
    """Sums of tokens divided by a constant, so that long answers are not favoured where they are wrong."""
    normalize_by_std: bool = False
    """Differences to the group's mean as they are, so that easy and hard prompts do not weigh more."""


SPEC = PluginSpec(
    name="dr_grpo",
    summary="Dr. GRPO: GRPO without division by lengths and standard deviations",
    target="omni_portable.algorithms.dr_grpo.algorithm:DrGRPO",
    options=DrGRPOOptions,
    capabilities={"kind": "token", "needs_log_probs": True, "min_group_size": 2},
)
