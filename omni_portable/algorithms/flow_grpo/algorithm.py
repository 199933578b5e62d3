"""Flow-GRPO as an algorithm of the house: plans, advantages and loss from one set of options."""

from __future__ import annotations

from omni_portable.algorithms.flow_grpo.loss import flow_grpo_loss
from omni_portable.algorithms.flow_grpo.options import FlowGRPOOptions
from omni_portable.algorithms.stochastic import StochasticAlgorithm
from omni_portable.contracts.algorithm import LossRows, Replay, Rows


class FlowGRPO(StochasticAlgorithm):
    """Clipped policy gradient on the stochastic steps; MixGRPO and DanceGRPO are this with other defaults."""

    name = "flow_grpo"
    options: FlowGRPOOptions

    def policy_loss(self, replay: Replay, rows: Rows) -> LossRows:
        """See :func:`flow_grpo_loss`."""
        return flow_grpo_loss(
            replay.log_prob,
            rows.old_log_prob,
            rows.advantage,
            clip_ratio=self.options.clip_ratio,
            advantage_clip=self.options.advantage_clip,
            importance_weight=rows.importance_weight,
        )
