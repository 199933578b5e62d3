"""Flow-DPPO as an algorithm: the loss needs the means of the policy that drew the rollout."""

from __future__ import annotations

from omni_portable.algorithms.base import required
from omni_portable.algorithms.diffusion_losses.dppo import flow_dppo_loss
from omni_portable.algorithms.flow_dppo import FlowDPPOOptions
from omni_portable.algorithms.stochastic import StochasticAlgorithm
from omni_portable.contracts.algorithm import LossRows, Replay, Rows


class FlowDPPO(StochasticAlgorithm):
    """See :func:`flow_dppo_loss`."""

    name = "flow_dppo"
    options: FlowDPPOOptions

    def policy_loss(self, replay: Replay, rows: Rows) -> LossRows:
        return flow_dppo_loss(
            replay.log_prob,
            rows.old_log_prob,
            rows.advantage,
            replay.mean,
            required(replay.old_mean, "old"),
            replay.std,
            kl_mask_threshold=self.options.kl_mask_threshold,
            scale_kl_by_variance=self.options.scale_kl_by_variance,
            importance_weight=rows.importance_weight,
        )
