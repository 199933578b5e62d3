"""The driver's side of a step that trains on the policy's own samples, with a fake score network beside the policy."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from omni_backends.training.fake import fake_metrics
from omni_backends.training.fsdp2.layout import Layout
from omni_backends.training.fsdp2.ranks import Ranks
from omni_backends.training.fsdp2.shares import Round, in_order
from omni_backends.training.rows import RowLog, check_norm
from omni_portable.contracts.algorithm import ScoreDistillation, TrainBatch
from omni_portable.contracts.errors import NonFiniteError


def train_fake(
    ranks: Ranks,
    rounds: Sequence[Round],
    shares: Sequence[Mapping[str, Any]],
    layout: Layout,
    batch: TrainBatch,
    algorithm: ScoreDistillation,
    total_weight: float,
) -> dict[str, float]:
    """Have the ranks look at the policy's samples, and train the fake network on them; the metrics of its last update.

    Args:
        rounds / shares: the batch as dealt, and the same by rank.
        total_weight: of the batch.

    Raises:
        NonFiniteError: a loss or gradient is not finite; that update was not made, earlier ones were.
    """
    ranks.call("sample", shares, algorithm=algorithm)
    wanted = algorithm.requires.fake_score
    trained = [dealt for dealt in rounds if dealt[0].backward]
    metrics: dict[str, float] = {}
    for update in range(wanted.updates_per_step if wanted else 0):
        results = ranks.call("accumulate_fake", update=update, algorithm=algorithm, total_weight=total_weight)
        log, norm = RowLog(), results[0][1]
        for part in in_order([logs for logs, _ in results], trained, layout):
            log.extend(part)
        try:
            log.check_finite()
            if not math.isfinite(norm):
                check_norm(norm, [trajectory.request.request_id for trajectory in batch.trajectories])
        except NonFiniteError:
            ranks.call("discard")
            raise
        metrics = fake_metrics(log, norm, ranks.call("step_fake", norm=norm)[0])
    return metrics
