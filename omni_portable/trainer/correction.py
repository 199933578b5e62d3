"""Rollout correction of a batch: which log-probs ratios are taken against, weights, and samples left out."""

from __future__ import annotations

from dataclasses import replace

import torch

from omni_portable.algorithms.rollout_correction import correct
from omni_portable.config.schema import RolloutCorrectionConfig
from omni_portable.contracts.algorithm import TrainBatch
from omni_portable.contracts.errors import ConsistencyError
from omni_portable.trainer.consistency import stack_log_probs


def correct_batch(
    batch: TrainBatch, actor: torch.Tensor, config: RolloutCorrectionConfig
) -> tuple[TrainBatch, dict[str, float]]:
    """The batch as the configuration corrects it, and its metrics.

    Args:
        actor: (N, W) fp32 log-probs of the batch's transitions under the actor before its update.

    Raises:
        ConsistencyError: every sample was rejected.
    """
    rollout = stack_log_probs(batch.trajectories)
    found = correct(actor, rollout, config, ~rollout.isnan())
    if not bool(found.kept.any()):
        raise ConsistencyError(
            "rollout_correction.reject rejects every sample of this rollout",
            remedy="look at rollout_corr/* in the metrics; the two engines do not run the same policy",
        )
    weights = torch.ones(len(found.kept)) if batch.weights is None else batch.weights
    batch = replace(batch, weights=weights * found.kept.float())
    if config.mode == "decoupled":
        batch = replace(batch, old_log_probs=actor, importance_weights=found.weights)
    return batch, found.metrics
