"""Single-process training of a diffusion transformer or language model: replay, loss, one optimizer step, weights."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import torch

from omni_backends.training.accumulate import accumulate
from omni_backends.training.checkpoint import load_engine, save_engine
from omni_backends.training.export import export_full, export_lora
from omni_backends.training.fake import FakeTrainer
from omni_backends.training.generated import OwnSamples
from omni_backends.training.lifecycle import TAGS, SleepGuard
from omni_backends.training.micro import Forward, MicroBatch, sample_weights
from omni_backends.training.noised import noised_batches
from omni_backends.training.optim import MasterOptimizer
from omni_backends.training.policies import Policies
from omni_backends.training.replay import transition_batches
from omni_backends.training.rows import filled_up
from omni_backends.training.teachers import Teachers
from omni_backends.training.tokens import token_batches, total_weight
from omni_portable.config.kinds import trained_kind
from omni_portable.contracts.algorithm import ScoreDistillation, TrainBatch
from omni_portable.contracts.device import SleepTag
from omni_portable.contracts.errors import CapabilityError, ConfigError
from omni_portable.contracts.lifecycle import Ack
from omni_portable.contracts.tokens import AnyAlgorithm, TokenAlgorithm
from omni_portable.contracts.training import Policy, StepResult
from omni_portable.contracts.weights import WeightStream
from omni_portable.models.lora import trainable_named_tensors
from omni_portable.models.lora_file import inject_configured_lora
from omni_portable.models.setup import EngineSetup, load_adapter, load_token_adapter
from omni_portable.models.weights import checksums, make_stream


class SingleTrainEngine:
    """A train engine (see `contracts.training.TrainEngine`) that holds everything in this process.

    Args:
        setup: configuration, device, how to load the model, and what the algorithm requires.

    Raises:
        CapabilityError: an option that this engine or the model cannot serve.
        ConfigError: a value of the `actor` section that cannot work.
    """

    name = "single"

    def __init__(self, setup: EngineSetup) -> None:
        _check_config(setup)
        config, self._setup = setup.config, setup
        self._micro_size = config.actor.micro_batch_size or config.rollout.max_num_seqs
        self._device = setup.load.torch_device
        self._tokens = trained_kind(config) == "autoregressive"
        self._adapter: Any = (load_token_adapter if self._tokens else load_adapter)(setup, ("transformer",))
        self._module = self._adapter.transformer
        self._lora = inject_configured_lora(self._adapter, config.model.lora, config.trainer.seed)
        if self._lora is None:
            self._module.requires_grad_(True)
        self._module.eval()  # no dropout: the replay repeats the rollout's arithmetic
        if config.actor.gradient_checkpointing:
            _enable_checkpointing(self._module)
        parameters = _trainable(self._module)
        self._optimizer = MasterOptimizer(parameters, config.actor)
        self._policies = Policies(
            self._module,
            parameters,
            self._optimizer.masters,
            adapter=self._lora is not None,
            base_is_reference=not config.model.lora.path,
            requires=setup.requires,
            ema_decay=config.actor.ema_decay,
        )
        fake = setup.requires.fake_score
        self._fake = FakeTrainer(self._policies, self._optimizer, config.actor, fake) if fake else None
        self._teachers = Teachers(setup) if setup.requires.teacher else None
        self._guard = self._make_guard()

    @property
    def optimizer_steps(self) -> int:
        """Optimizer steps done since the start of the run (restored by :meth:`load`)."""
        return self._optimizer.steps_done

    def log_probs(self, batch: TrainBatch, policy: Policy = "current") -> torch.Tensor:
        """(N, W) fp32 on the CPU, no gradient, in the micro-batches that training uses (equal weights: equal bits).

        W are the stored steps, or the tokens of the longest response; NaN where a response has ended.
        """
        self._guard.require_awake("score transitions", *self._needs(policy))
        with torch.no_grad(), self._policies.running(policy):
            if self._tokens:
                batches = token_batches(batch, None, self._micro_size, self._device)
                return filled_up([one.recorded(one.forward(self._adapter, 0)) for one in batches]).to("cpu")
            rows = [
                torch.stack([micro.forward(self._adapter, w).log_prob for w in range(micro.num_steps)], dim=1)
                for micro in transition_batches(self._adapter, batch, self._micro_size, self._device)
            ]
            return torch.cat(rows).to("cpu")

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
        _check_requires(algorithm, self._setup)
        self._optimizer.zero_grad()
        total = self._total_weight(batch, algorithm)
        micros, beside = self._micro_batches(batch, algorithm, total)
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

    def update_old_policy(self, decay: float) -> None:
        """old <- decay * old + (1 - decay) * current (0 copies), for algorithms that require an old policy."""
        self._guard.require_awake("update its old policy", *TAGS)
        self._policies.update_old(decay)

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

    def sleep(self, level: int = 1, tags: Sequence[SleepTag] = TAGS) -> Ack:
        """Release device memory, keeping an exact copy off the device; level 1 only (see `SleepGuard.sleep`)."""
        return self._guard.sleep(level, tags)

    def wake(self, tags: Sequence[SleepTag] = TAGS) -> Ack:
        """Restore what sleeps, bit for bit."""
        return self._guard.wake(tags)

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
        """Write a peft / diffusers LoRA, or a diffusers transformer folder, of the named policy."""
        self._guard.require_awake("export", *self._needs(policy))
        folder.mkdir(parents=True, exist_ok=True)
        if self._lora is not None:
            export_lora(folder, self._policies.tensors(policy), self._lora, self._setup.config.model.path)
            return
        with torch.no_grad(), self._policies.running(policy):
            export_full(folder, self._module)

    def _total_weight(self, batch: TrainBatch, algorithm: AnyAlgorithm) -> float:
        if self._tokens:
            return total_weight(batch, cast(TokenAlgorithm, algorithm))
        return float(sample_weights(batch).double().sum())

    def _micro_batches(
        self, batch: TrainBatch, algorithm: AnyAlgorithm, total: float
    ) -> tuple[Iterator[MicroBatch], dict[str, float]]:
        """Rows of one step, and metrics of what was trained beside the policy to make them."""
        size, device = self._micro_size, self._device
        if self._tokens:
            return token_batches(batch, cast(TokenAlgorithm, algorithm), size, device), {}
        if algorithm.row_kind == "generated":
            distilled = cast(ScoreDistillation, algorithm)
            samples = OwnSamples(self._adapter, batch, distilled, size, device)
            beside = self._fake.train(self._adapter, samples.fake_rows, distilled, total) if self._fake else {}
            return samples.policy_rows(), beside
        if algorithm.row_kind == "noised":
            return noised_batches(self._adapter, batch, algorithm, size, device), {}
        return transition_batches(self._adapter, batch, size, device), {}

    def _others(self, algorithm: AnyAlgorithm) -> dict[Policy, Forward]:
        """The policies that the algorithm compares with, each as a forward of a micro-batch."""
        requires = algorithm.requires
        wanted: dict[Policy, bool] = {
            "reference": requires.reference_policy,
            "old": requires.old_policy,
            "fake": requires.fake_score is not None,
        }
        others = {policy: self._under(policy) for policy, needed in wanted.items() if needed}
        if requires.teacher:
            assert self._teachers is not None  # _check_requires
            others["teacher"] = self._teachers.forward
        return others

    def _under(self, policy: Policy) -> Forward:
        def forward(micro: MicroBatch, step: int) -> Any:
            with self._policies.running(policy):
                return micro.forward(self._adapter, step)

        return forward

    def _trained_copies(self) -> dict[str, MasterOptimizer]:
        return {"fake": self._fake.optimizer} if self._fake else {}

    def _needs(self, policy: Policy) -> tuple[SleepTag, ...]:
        return TAGS if policy in self._policies.copies else ("weights",)

    def _make_guard(self) -> SleepGuard:
        pool = self._setup.device.memory.pool("actor")
        pool.register("weights", self._module)
        for teacher in self._teachers.modules() if self._teachers else ():
            pool.register("weights", teacher)
        pool.register("optimizer", self._optimizer.adamw)
        if self._optimizer.separate_masters:
            pool.register("optimizer", torch.nn.ParameterList(self._optimizer.separate_masters))
        for copy in self._policies.copies.values():
            pool.register("optimizer", copy)
        for other in self._trained_copies().values():
            pool.register("optimizer", other.adamw)
        return SleepGuard(self.name, pool)


def _check_config(setup: EngineSetup) -> None:
    lora, actor = setup.config.model.lora, setup.config.actor
    if lora.rank and lora.dropout:
        raise CapabilityError(
            f"model.lora.dropout is {lora.dropout}; train engine 'single' replays without dropout, since log-probs "
            "under dropout are not those of the rollout",
            remedy="set model.lora.dropout=0",
        )
    if not 0.0 <= actor.ema_decay < 1.0:
        raise ConfigError(f"actor.ema_decay is {actor.ema_decay}; it must be at least 0 and below 1")
    if setup.requires.ema and actor.ema_decay == 0.0:
        raise CapabilityError(
            "the algorithm requires an average of the weights, but actor.ema_decay is 0",
            remedy="set actor.ema_decay, for example to 0.999",
        )
    for name in ("grad_clip", "warmup_steps", "micro_batch_size"):
        if getattr(actor, name) < 0:
            raise ConfigError(f"actor.{name} is {getattr(actor, name)}; it must be at least 0")


def _check_requires(algorithm: AnyAlgorithm, setup: EngineSetup) -> None:
    for name in ("reference_policy", "old_policy", "ema", "teacher", "fake_score"):
        if getattr(algorithm.requires, name) and not getattr(setup.requires, name):
            raise CapabilityError(
                f"algorithm '{algorithm.name}' requires {name}, but the train engine was built without it",
                remedy="build the engine with EngineSetup(requires=algorithm.requires)",
            )


def _enable_checkpointing(module: torch.nn.Module) -> None:
    enable = getattr(module, "enable_gradient_checkpointing", None)
    if not callable(enable):
        raise CapabilityError(
            f"actor.gradient_checkpointing is on, but {type(module).__name__} does not support it",
            remedy="set actor.gradient_checkpointing=false",
        )
    enable()


def _trainable(module: torch.nn.Module) -> dict[str, torch.nn.Parameter]:
    """Canonical name -> trainable parameter, in module order."""
    found: dict[str, torch.nn.Parameter] = {}
    for name, parameter in trainable_named_tensors(module):
        assert isinstance(parameter, torch.nn.Parameter)
        found[name] = parameter
    return found
