"""Dr. GRPO (arXiv 2503.20783): GRPO without its biases of length and of difficulty. Loads without torch.

A = r - mean of the group, not divided by its std; a sequence's loss is the sum over its tokens divided by
max_new_tokens, not by its own length.
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
