"""On-policy distillation as an algorithm: the reverse KL to a teacher where the student really goes."""

from __future__ import annotations

from omni_portable.algorithms.base import required
from omni_portable.algorithms.token_base import TokenAlgorithmBase
from omni_portable.algorithms.token_losses.distill import reverse_kl
from omni_portable.algorithms.token_losses.policy_gradient import TokenTerms, ppo_clip_terms
from omni_portable.algorithms.token_opd import TokenOPDOptions
from omni_portable.contracts.tokens import TokenReplay, TokenRows

NO_DUAL_CLIP = 1e9


class TokenOPD(TokenAlgorithmBase):
    """See `TokenOPDOptions.objective`."""

    name = "token_opd"
    options: TokenOPDOptions

    def __init__(self, options: TokenOPDOptions) -> None:
        super().__init__(options)
        self.needs_logits = options.objective == "full"

    def policy_terms(self, replay: TokenReplay, rows: TokenRows) -> TokenTerms:
        """distill_coef times the objective, per token.

        'full': KL(student, teacher) over the vocabulary; 'sampled': PPO's clipped loss without dual clip, with
        A = log p_teacher - log p of the sampled token.
        """
        coef = self.options.distill_coef
        teacher = required(replay.teacher_log_prob, "teacher")
        gap = (replay.log_prob - teacher).detach()
        if self.options.objective == "full":
            kl = reverse_kl(required(replay.logits, "current"), required(replay.teacher_logits, "teacher"))
            return TokenTerms(coef * kl, {"actor/distill_kl_loss": kl.detach(), "actor/distill_k1": gap})
        clip = self.options.clip
        terms = ppo_clip_terms(
            replay.log_prob, rows.old_log_prob, -gap, clip_low=clip, clip_high=clip, dual_clip=NO_DUAL_CLIP
        )
        return TokenTerms(coef * terms.loss, {**terms.metrics, "actor/distill_k1": gap})
