"""Training a fake score network: a copy of the policy that learns to denoise the policy's own samples.

It runs in the policy's module, whose parameters stand for the copy's tensors meanwhile, so that it costs memory for its
own trained tensors, their optimizer state, and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import torch

from omni_backends.training.accumulate import accumulate
from omni_backends.training.ema import TrainedCopy
from omni_backends.training.micro import MicroBatch
from omni_backends.training.optim import MasterOptimizer
from omni_backends.training.policies import Policies
from omni_backends.training.rows import RowLog
from omni_portable.config.schema import ActorConfig
from omni_portable.contracts.algorithm import FakeScore, LossRows, ScoreDistillation


@dataclass
class FakeLoss:
    """The loss of an algorithm's fake network as `accumulate` wants it."""

    name: str
    loss: Callable[[Any, Any], LossRows]

    @classmethod
    def of(cls, algorithm: ScoreDistillation) -> FakeLoss:
        return cls(algorithm.name, algorithm.fake_loss)


class FakeTrainer:
    """The fake network's optimizer.

    Args:
        policies: hold the network's tensors as the policy 'fake'.
        actor: the policy's optimizer, into whose gradients the passes through its module run.
        config: the run's `actor` section, which holds for this optimizer too.
        wanted: number of updates, and learning rate.
    """

    def __init__(self, policies: Policies, actor: MasterOptimizer, config: ActorConfig, wanted: FakeScore) -> None:
        assert policies.fake is not None
        self._policies, self._actor = policies, actor
        self._copy: TrainedCopy = policies.fake
        self.updates = wanted.updates_per_step
        self.optimizer = MasterOptimizer(self._copy.named(), replace(config, lr=wanted.lr or config.lr))

    def train(
        self,
        adapter: Any,
        rows: Callable[[int], Iterable[MicroBatch]],
        algorithm: ScoreDistillation,
        total_weight: float,
    ) -> dict[str, float]:
        """All updates before one step of the policy; the metrics of the last.

        Args:
            rows: number of an update (0 for the first) -> its micro-batches.

        Raises:
            NonFiniteError: a loss or gradient is not finite; that update was not made, earlier ones were.
        """
        metrics: dict[str, float] = {}
        for update in range(self.updates):
            metrics = self._update(adapter, rows(update), algorithm, total_weight)
        return metrics

    def _update(
        self, adapter: Any, micros: Iterable[MicroBatch], algorithm: ScoreDistillation, total_weight: float
    ) -> dict[str, float]:
        self._actor.zero_grad()
        try:
            with self._policies.standing_in("fake"):
                log = accumulate(
                    adapter,
                    micros,
                    FakeLoss.of(algorithm),
                    total_weight=total_weight,
                    others={},
                    gradient_norm=self._actor.gradient_norm,
                )
                log.check_finite()
            self._take_gradients()
            norm = self.optimizer.gradient_norm()
            lr = self.step(norm)
        finally:
            self.optimizer.zero_grad()
            self._actor.zero_grad()
        return fake_metrics(log, float(norm), lr)

    def step(self, norm: torch.Tensor) -> float:
        """Update the network by the gradient that passes through the policy's module have left; the rate used.

        Args:
            norm: of that gradient, over all processes.
        """
        self._take_gradients()
        lr = self.optimizer.learning_rate()
        self.optimizer.step(norm)
        self._actor.zero_grad()
        return lr

    def _take_gradients(self) -> None:
        for name, parameter in self._copy.named().items():
            parameter.grad = self._actor.masters[name].grad


def fake_metrics(log: RowLog, norm: float, lr: float) -> dict[str, float]:
    """What an update logs, of its rows."""
    metrics = log.metrics()
    loss = metrics.pop("actor/loss")
    return {**metrics, "actor/fake_loss": loss, "actor/fake_grad_norm": norm, "actor/fake_lr": lr}
