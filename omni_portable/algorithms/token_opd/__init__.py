"""On-policy distillation of language models: the student's own responses, the teacher's probabilities. Torch-free.

    L = distill_coef sum_v p(v) (log p(v) - log p_teacher(v))             objective 'full', v over the vocabulary
    L = distill_coef max(-A rho, -A clip(rho, 1 - clip, 1 + clip))        objective 'sampled'
    A = log p_teacher - log p of the sampled token, held constant,    rho = exp(lp - lp_old)

at every token of a response, and the mean over all tokens; kl_coef KL(policy, reference) - entropy_coef entropy is
added. Source: reverse KL on the student's own samples, as in GKD (arXiv 2306.13649) with on-policy data.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from omni_portable.algorithms.options import require
from omni_portable.algorithms.token_options import TokenOptions
from omni_portable.contracts.algorithm import Requires
from omni_portable.contracts.registry import PluginSpec


@dataclass(frozen=True)
class TokenOPDOptions(TokenOptions):
    """Keys of `algorithm` for 'token_opd'. Rewards are only logged."""

    objective: Literal["full", "sampled"] = "full"
    """'full': KL(student || teacher) over the whole vocabulary at every token (both logits are kept: choose a small
    actor.micro_batch_size for large vocabularies); 'sampled': policy gradient with log teacher - log student of the
    sampled token as its reward, clipped as in PPO."""
    distill_coef: float = 1.0
    """Weight of the objective."""
    clip: float = 0.2
    """'sampled': ratios beyond 1 +- this are clipped."""

    def __post_init__(self) -> None:
        """Refuse a weight that trains nothing (`ConfigError`)."""
        super().__post_init__()
        require(self.distill_coef > 0.0, "distill_coef", self.distill_coef, "positive")
        require(0.0 < self.clip < 1.0, "clip", self.clip, "between 0 and 1")

    def requires(self) -> Requires:
        """A teacher, and the reference where its KL counts."""
        return Requires(reference_policy=self.kl_coef > 0.0, teacher=True)


SPEC = PluginSpec(
    name="token_opd",
    summary="On-policy distillation: the student follows one or several teachers on its own responses (reverse KL)",
    target="omni_portable.algorithms.token_opd.algorithm:TokenOPD",
    options=TokenOPDOptions,
    capabilities={"kind": "token", "needs_log_probs": True, "needs_teacher": True},
)
