"""GSPO as an algorithm of the house."""

from __future__ import annotations

from omni_portable.algorithms.token_base import GroupClipAlgorithm
from omni_portable.algorithms.token_losses.policy_gradient import TokenTerms, gspo_terms
from omni_portable.contracts.tokens import TokenReplay, TokenRows


class GSPO(GroupClipAlgorithm):
    """The ratio of a sequence at every of its tokens."""

    name = "gspo"

    def policy_terms(self, replay: TokenReplay, rows: TokenRows) -> TokenTerms:
        """See :func:`gspo_terms`."""
        return gspo_terms(
            replay.log_prob,
            rows.old_log_prob,
            rows.advantage[:, None],
            replay.mask,
            clip_low=self.options.clip_low,
            clip_high=self.options.clip_high,
        )
