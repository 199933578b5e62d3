"""GSPO (arXiv 2507.18071): clipping by the ratio of whole sequences. Loads without torch.

    L = mean over responses of the mean over tokens of (l + kl_coef KL(policy, reference) - entropy_coef entropy)
    l = max(-A s, -A clip(s, 1 - clip_low, 1 + clip_high)),    s = exp(mean over the response's tokens of lp - lp_old)
    A = (r - mean of the prompt's group) / (std of the group + advantage_epsilon)

Every token carries the value of s and the gradient of its own log-prob (the publication's GSPO-token form). As in verl.
"""

from __future__ import annotations

from dataclasses import dataclass

from omni_portable.algorithms.token_losses.names import Aggregation
from omni_portable.algorithms.token_options import ClipOptions
from omni_portable.contracts.registry import PluginSpec


@dataclass(frozen=True)
class GSPOOptions(ClipOptions):
    """Keys of `algorithm` for 'gspo'."""

    aggregation: Aggregation = "seq-mean-token-mean"
    """Every sequence counts the same."""
    clip_low: float = 3e-4
    """Ratios of sequences below 1 - this are clipped; small because they are means over tokens."""
    clip_high: float = 4e-4
    """Ratios of sequences above 1 + this are clipped."""


SPEC = PluginSpec(
    name="gspo",
    summary="GSPO: group-relative advantages, clipped by the length-normalised ratio of whole sequences",
    target="omni_portable.algorithms.gspo.algorithm:GSPO",
    options=GSPOOptions,
    capabilities={"kind": "token", "needs_log_probs": True, "min_group_size": 2},
)
