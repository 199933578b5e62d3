"""PPO's clipped policy gradient with dual clip (arXiv 1707.06347, 1912.09729), without a critic. Torch-free.

    L   = mean over all tokens of (l + kl_coef KL(policy, reference) - entropy_coef entropy)
    l   = max(-A rho, -A clip(rho, 1 - clip_low, 1 + clip_high)), at most -A dual_clip where A < 0
    rho = exp(lp - lp_old) of a token
    A   = (r - baseline) / (std + advantage_epsilon) at every token of a response

The baseline and the std are those of all rewards of the rollout (`baseline` 'batch') or of the prompt's group
('group'); with 'none' A = r.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from omni_portable.algorithms.token_options import DualClipOptions
from omni_portable.contracts.registry import PluginSpec


@dataclass(frozen=True)
class PPOOptions(DualClipOptions):
    """Keys of `algorithm` for 'ppo'. There is no value network: one reward per response is its return at every token
    (gamma = lambda = 1), and the baseline is one of those below."""

    baseline: Literal["batch", "group", "none"] = "batch"
    """What rewards are compared with: the mean of the whole rollout, of the prompt's group, or nothing.
    `normalize_by_std` divides by the standard deviation of the same set."""


SPEC = PluginSpec(
    name="ppo",
    summary="PPO-clip with dual clip; advantages from the rollout's own rewards instead of a critic",
    target="omni_portable.algorithms.ppo.algorithm:PPO",
    options=PPOOptions,
    capabilities={"kind": "token", "needs_log_probs": True},
)
