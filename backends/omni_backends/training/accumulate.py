"""Gradients of one mini-batch, accumulated over (micro-batch, row number) pairs so that memory stays bounded.

The loss of a mini-batch is sum(row loss * row weight) / (total weight * W). The total is known before the first
forward, so each pair's share is divided by it at once and the gradient depends neither on the micro-batch split nor on
how many processes hold the samples (each passes the total over all of them).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

import torch

from omni_backends.training.micro import Forward, MicroBatch
from omni_backends.training.rows import RowLog
from omni_portable.contracts.algorithm import LossRows, Policy


class RowLoss(Protocol):
    """What is asked of an algorithm here, whatever its rows are."""

    name: str

    def loss(self, replay: Any, rows: Any) -> LossRows: ...


def accumulate(
    adapter: Any,
    micros: Iterable[MicroBatch],
    algorithm: RowLoss,
    *,
    total_weight: float,
    others: Mapping[Policy, Forward],
    gradient_norm: Callable[[], torch.Tensor],
) -> RowLog:
    """Run forward and backward for every (micro-batch, row number); gradients add up in the parameters.

    Args:
        adapter: of the kind that the micro-batches run.
        micros: micro-batches in sample order.
        total_weight: denominator of the whole mini-batch's loss, over all processes: the sum of the sample weights, or
            what a token algorithm's aggregation divides by.
        others: policy that the algorithm requires -> its forward, which is run without gradient.
        gradient_norm: scalar norm of the gradients so far; a norm that is not finite is traced to its micro-batch.

    Returns:
        Rows of losses, metrics and log-probs; nothing in it was checked for finiteness yet.
    """
    log = RowLog()
    for micro in micros:
        for step in range(micro.num_steps):
            log.add_log_probs(_backward(adapter, micro, step, algorithm, total_weight, others, log))
        log.end_micro_batch(micro.common.request_ids, gradient_norm())
    return log


def _backward(
    adapter: Any,
    micro: MicroBatch,
    step: int,
    algorithm: RowLoss,
    total_weight: float,
    others: Mapping[Policy, Forward],
    log: RowLog,
) -> torch.Tensor:
    """One forward, and one backward unless every row has weight 0; returns the detached log-probs."""
    trained = bool(micro.common.trained.any())
    beside: dict[str, Any] = {}
    if trained:
        with torch.no_grad():
            beside = {policy: forward(micro.compared(policy), step) for policy, forward in others.items()}
    with torch.set_grad_enabled(trained):
        scored = micro.forward(adapter, step)
    if trained:
        replay, rows = micro.loss_inputs(step, scored, beside)
        result = algorithm.loss(replay, rows)
        _check_rows(algorithm.name, result, rows)
        ((result.loss * rows.weight).sum() / (total_weight * micro.num_steps)).backward()
        log.add_rows(result, rows)
    return micro.recorded(scored)


def _check_rows(name: str, result: LossRows, rows: Any) -> None:
    shape = rows.weight.shape
    for what, tensor in (("loss", result.loss), *result.metrics.items()):
        if tensor.shape != shape:
            raise ValueError(
                f"algorithm '{name}' returned {what} of shape {tuple(tensor.shape)}, expected one value for each of "
                f"{tuple(shape)} rows"
            )
