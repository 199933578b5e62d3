"""DAPO (arXiv 2503.14476): clip-higher, dynamic sampling, token-mean loss, overlong shaping. Loads without torch.

    L   = mean over all tokens of (l + kl_coef KL(policy, reference) - entropy_coef entropy)
    l   = max(-A rho, -A clip(rho, 1 - clip_low, 1 + clip_high)), at most -A dual_clip where A < 0
    rho = exp(lp - lp_old) of a token
    A   = (r' - mean of the prompt's group) / (std of the group + advantage_epsilon)
    r'  = r - overlong_penalty clamp((length - (max_new_tokens - overlong_buffer)) / overlong_buffer, 0, 1)

clip_high is above clip_low, so that rare tokens may become likely. Groups of equal rewards r are left out and drawn
again (`refill_rounds`).
"""

from __future__ import annotations

from dataclasses import dataclass

from omni_portable.algorithms.options import require
from omni_portable.algorithms.token_options import DualClipOptions
from omni_portable.contracts.registry import PluginSpec


@dataclass(frozen=True)
class DAPOOptions(DualClipOptions):
    """Keys of `algorithm` for 'dapo'."""

    clip_high: float = 0.28
    """Ratios above 1 + this are clipped; higher than `clip_low`, so that rare tokens may become likely."""
    refill_rounds: int = 2
    """How often further prompts are drawn in one step while fewer than data.train_batch_size groups carry a signal
    (rewards that differ). Groups without one are never trained on; what is still missing then is done without."""
    overlong_buffer: int = 0
    """Tokens before max_new_tokens within which a response is punished for its length; 0 turns it off."""
    overlong_penalty: float = 1.0
    """Largest punishment, at max_new_tokens; it grows linearly over the buffer."""

    def __post_init__(self) -> None:
        """Refuse what cannot be carried out (`ConfigError`)."""
        super().__post_init__()
        require(self.refill_rounds >= 0, "refill_rounds", self.refill_rounds, "0 (never) or more", most=1000)
        require(self.overlong_buffer >= 0, "overlong_buffer", self.overlong_buffer, "0 (off) or more")
        require(self.overlong_penalty >= 0.0, "overlong_penalty", self.overlong_penalty, "0 or positive")


SPEC = PluginSpec(
    name="dapo",
    summary="DAPO: GRPO with clip-higher, dynamic sampling, token-mean loss and overlong shaping",
    target="omni_portable.algorithms.dapo.algorithm:DAPO",
    options=DAPOOptions,
    capabilities={"kind": "token", "needs_log_probs": True, "min_group_size": 2},
)
