"""Single-process training of a diffusion transformer or language model: replay, loss, one optimizer step, weights."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import cast

import torch

from omni_backends.training.accumulate import accumulate
from omni_backends.training.checkpoint import load_engine, save_engine
from omni_backends.training.checks import check_requires
from omni_backends.training.export import export_full, export_lora
from omni_backends.training.generated import OwnSamples
from omni_backends.training.lifecycle import TAGS
from omni_backends.training.micro import MicroBatch
from omni_backends.training.worker import Worker, mini_batch_weight
from omni_portable.config.kinds import trained_kind
from omni_portable.contracts.algorithm import ScoreDistillation, TrainBatch
from omni_portable.contracts.tokens import AnyAlgorithm
from omni_portable.contracts.training import Policy, StepResult
from omni_portable.contracts.weights import WeightStream
from omni_portable.models.weights import checksums, make_stream


class SingleTrainEngine(Worker):
    """A train engine (see `contracts.training.TrainEngine`) that holds everything in this process.

    Args:
        setup: configuration, device, how to load the model, and what the algorithm requires.

    Raises:
        CapabilityError: an option that this engine or the model cannot serve.
        ConfigError: a value of the `actor` section that cannot work.
    """

    name = "single"

    def train_step(self, batch: TrainBatch, algorithm: AnyAlgorithm) -> StepResult:
        """One optimizer step over the whole batch (see `accumulate` for the loss).

        Raises:
            NonFiniteError: a loss or the gradient is not finite; weights, optimizer and averages are unchanged (updates
                that a fake score network had before stay).
            DataError: every sample has weight 0, or the batch's tensors do not fit.
            ConsistencyError: trajectories of one micro-batch that cannot share a forward, or that ran another schedule
                than their request's.
            CapabilityError: no stored transitions, or a required policy that this engine was not built with.
        """
        self._guard.require_awake("train", *TAGS)
        check_requires(algorithm, self._setup)
        self._optimizer.zero_grad()
        total = mini_batch_weight(batch, algorithm, tokens=self._tokens)
        micros, beside = self._rows(batch, algorithm, total)
        try:
            log = accumulate(
                self._adapter,
                micros,
                algorithm,
                total_weight=total,
                others=self._others(algorithm),
                gradient_norm=self._optimizer.gradient_norm,
            )
            log.check_finite()
            norm, lr = self._optimizer.gradient_norm(), self._optimizer.learning_rate()
            self._optimizer.step(norm)
        finally:
            self._optimizer.zero_grad()
        self._policies.after_step()
        metrics = {**log.metrics(total if self._tokens else None), "actor/grad_norm": float(norm), "actor/lr": lr}
        return StepResult(metrics | beside, log.log_probs())

    def weights(self, policy: Policy = "current") -> WeightStream:
        """A policy's trained tensors for rollout, in the dtype that rollout computes in."""
        self._guard.require_awake("give weights", *self._needs(policy))
        return make_stream(
            "full" if self._lora is None else "adapter", self._policies.tensors(policy).items(), self._lora
        )

    def weights_checksum(self, policy: Policy = "current") -> dict[str, str]:
        """Checksum per tensor of what :meth:`weights` streams."""
        self._guard.require_awake("hash weights", *self._needs(policy))
        return checksums(self._policies.tensors(policy).items())

    def save(self, folder: Path) -> None:
        """Write weights, policy copies and optimizer state (files: see `training.state`) into an existing folder."""
        self._guard.require_awake("save", *TAGS)
        save_engine(folder, self._optimizer, self._policies.copies, self._lora, self._trained_copies())

    def load(self, folder: Path) -> None:
        """Continue exactly where :meth:`save` was called; nothing changes unless every file is right.

        Raises:
            CheckpointError: a file is missing, truncated, corrupt or does not fit this run; names it.
        """
        self._guard.require_awake("load", *TAGS)
        load_engine(folder, self._optimizer, self._policies.copies, self._lora, self._trained_copies())

    def export(self, folder: Path, policy: Policy = "current") -> None:
        """Write a LoRA (peft's; of a diffusion model also diffusers'), or a model folder, of the named policy."""
        self._guard.require_awake("export", *self._needs(policy))
        folder.mkdir(parents=True, exist_ok=True)
        if self._lora is not None:
            config = self._setup.config
            export_lora(folder, self._policies.tensors(policy), self._lora, config.model.path, trained_kind(config))
            return
        with torch.no_grad(), self._policies.running(policy):
            export_full(folder, self._module)

    def _rows(
        self, batch: TrainBatch, algorithm: AnyAlgorithm, total: float
    ) -> tuple[Iterator[MicroBatch], dict[str, float]]:
        """Rows of one step, and metrics of what was trained beside the policy to make them."""
        if algorithm.row_kind != "generated":
            return self._micro_batches(batch, algorithm), {}
        distilled = cast(ScoreDistillation, algorithm)
        samples = OwnSamples(self._adapter, batch, distilled, self._micro_size, self._device)
        beside = self._fake.train(self._adapter, samples.fake_rows, distilled, total) if self._fake else {}
        return samples.policy_rows(), beside
