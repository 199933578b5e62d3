"""The train-engine seam: owns the actor's weights, optimizer and auxiliary policies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from omni_portable.contracts.algorithm import Policy, TrainBatch
from omni_portable.contracts.device import SleepTag
from omni_portable.contracts.lifecycle import Ack
from omni_portable.contracts.weights import WeightStream

if TYPE_CHECKING:
    import torch

    from omni_portable.contracts.tokens import AnyAlgorithm

__all__ = ["Policy", "StepResult", "TrainEngine"]


@dataclass
class StepResult:
    """Outcome of one optimizer step.

    Args:
        metrics: scalar metrics ('actor/...'), reduced over all rows of the mini-batch.
        log_probs: (N, W) fp32, detached, as recomputed with the weights before this step, in sample order; NaN for
            noised rows and after the end of a response.
    """

    metrics: dict[str, float]
    log_probs: torch.Tensor


@runtime_checkable
class TrainEngine(Protocol):
    name: str

    def log_probs(self, batch: TrainBatch, policy: Policy = "current") -> torch.Tensor:
        """(N, W) fp32 log-probs of the stored transitions, no gradient, in the micro-batches that training uses; of
        responses, W is the longest and NaN stands where others have ended."""
        ...

    def train_step(self, batch: TrainBatch, algorithm: AnyAlgorithm) -> StepResult:
        """One optimizer step over the whole batch, accumulated over micro-batches.

        Raises:
            NonFiniteError: loss or gradient norm is not finite; names the samples; the weights are left unchanged.
        """
        ...

    def update_old_policy(self, decay: float) -> None:
        """old <- decay * old + (1 - decay) * current; 0 copies.

        Raises:
            CapabilityError: the engine was built for an algorithm that requires no old policy.
        """
        ...

    def weights(self, policy: Policy = "current") -> WeightStream:
        """A policy for rollout: LoRA matrices only where LoRA is trained, all trainable tensors otherwise."""
        ...

    def weights_checksum(self, policy: Policy = "current") -> dict[str, str]:
        """Checksum per tensor of what :meth:`weights` streams."""
        ...

    def sleep(self, level: int = 1, tags: Sequence[SleepTag] = ("weights", "optimizer")) -> Ack: ...

    def wake(self, tags: Sequence[SleepTag] = ("weights", "optimizer")) -> Ack: ...

    def save(self, folder: Path) -> None:
        """Write weights (safetensors), optimizer state and auxiliary policies into an existing empty folder."""
        ...

    def load(self, folder: Path) -> None: ...

    def export(self, folder: Path, policy: Policy = "current") -> None:
        """Write what users deploy: a peft adapter or a diffusers transformer folder."""
        ...
