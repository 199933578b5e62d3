"""One process's part of a train engine: the model, the policies kept of it, and the passes over its samples.

The engines differ in where the parameters live and in how gradients of several processes come together; what is
computed of a sample does not, and is here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

import torch

from omni_backends.training.checks import check_config
from omni_backends.training.fake import FakeTrainer
from omni_backends.training.lifecycle import TAGS, SleepGuard
from omni_backends.training.micro import Forward, MicroBatch, sample_weights
from omni_backends.training.noised import noised_batches
from omni_backends.training.optim import MasterOptimizer
from omni_backends.training.policies import Policies, Swap
from omni_backends.training.recorded import RecordedTeachers
from omni_backends.training.replay import transition_batches
from omni_backends.training.rows import filled_up
from omni_backends.training.teachers import Teachers
from omni_backends.training.tokens import token_batches, total_weight
from omni_portable.config.kinds import trained_kind
from omni_portable.config.teachers import pooled
from omni_portable.contracts.algorithm import Algorithm, TrainBatch
from omni_portable.contracts.device import SleepTag
from omni_portable.contracts.errors import CapabilityError
from omni_portable.contracts.lifecycle import Ack
from omni_portable.contracts.tokens import AnyAlgorithm, TokenAlgorithm
from omni_portable.contracts.training import Policy
from omni_portable.models.lora import trainable_named_tensors
from omni_portable.models.lora_file import inject_configured_lora
from omni_portable.models.setup import EngineSetup, load_adapter, load_token_adapter


class Worker:
    """Base of the engines' processes.

    Args:
        setup: configuration, device, how to load the model, and what the algorithm requires.

    Raises:
        CapabilityError: an option that the engine or the model cannot serve.
        ConfigError: a value of the `actor` section that cannot work.
    """

    name = "worker"

    def __init__(self, setup: EngineSetup) -> None:
        check_config(setup, self.name)
        config, self._setup = setup.config, setup
        self._micro_size = micro_batch_size(setup)
        self._device = setup.load.torch_device
        self._tokens = trained_kind(config) == "autoregressive"
        self._adapter: Any = (load_token_adapter if self._tokens else load_adapter)(setup, ("transformer",))
        self._module: torch.nn.Module = self._adapter.transformer
        self._lora = inject_configured_lora(self._adapter, config.model.lora, config.trainer.seed)
        if self._lora is None:
            self._module.requires_grad_(True)
        self._module.eval()  # no dropout: the replay repeats the rollout's arithmetic
        if config.actor.gradient_checkpointing:
            _enable_checkpointing(self._module)
        self._teachers = _teachers(setup) if setup.requires.teacher else None
        self._distribute()
        parameters = trainable_parameters(self._module)
        self._optimizer = self._make_optimizer(parameters)
        self._policies = Policies(
            self._module,
            parameters,
            self._optimizer.masters,
            adapter=self._lora is not None,
            base_is_reference=not config.model.lora.path,
            requires=setup.requires,
            ema_decay=config.actor.ema_decay,
            swap=self._swap(),
        )
        fake = setup.requires.fake_score
        self._fake = FakeTrainer(self._policies, self._optimizer, config.actor, fake) if fake else None
        self._guard = self._make_guard()

    @property
    def optimizer_steps(self) -> int:
        """Optimizer steps done since the start of the run (restored by `load`)."""
        return self._optimizer.steps_done

    def log_probs(self, batch: TrainBatch, policy: Policy = "current") -> torch.Tensor:
        """(N, W) fp32 on the CPU, no gradient, in the micro-batches that training uses (equal weights: equal bits).

        W are the stored steps, or the tokens of the longest response; NaN where a response has ended.
        """
        self._guard.require_awake("score transitions", *self._needs(policy))
        with torch.no_grad(), self._policies.running(policy):
            return self._score(batch, self._micro_size)

    def update_old_policy(self, decay: float) -> None:
        """old <- decay * old + (1 - decay) * current (0 copies), for algorithms that require an old policy."""
        self._guard.require_awake("update its old policy", *TAGS)
        self._policies.update_old(decay)

    def sleep(self, level: int = 1, tags: Sequence[SleepTag] = TAGS) -> Ack:
        """Release device memory, keeping an exact copy off the device; level 1 only (see `SleepGuard.sleep`)."""
        return self._guard.sleep(level, tags)

    def wake(self, tags: Sequence[SleepTag] = TAGS) -> Ack:
        """Restore what sleeps, bit for bit."""
        return self._guard.wake(tags)

    def _distribute(self) -> None:
        """Spread the module's parameters over processes, where there are several."""

    def _make_optimizer(self, parameters: Mapping[str, torch.nn.Parameter]) -> MasterOptimizer:
        return MasterOptimizer(parameters, self._setup.config.actor)

    def _swap(self) -> Swap | None:
        """How parameters are exchanged for another policy's; None exchanges their storages."""
        return None

    def _score(self, batch: TrainBatch, size: int) -> torch.Tensor:
        """(N, W) fp32 on the CPU under the module's present weights, in micro-batches of at most `size` samples."""
        if self._tokens:
            batches = token_batches(batch, None, size, self._device)
            return filled_up([one.recorded(one.forward(self._adapter, 0)) for one in batches]).to("cpu")
        rows = [
            torch.stack([micro.forward(self._adapter, w).log_prob for w in range(micro.num_steps)], dim=1)
            for micro in transition_batches(self._adapter, batch, size, self._device)
        ]
        return torch.cat(rows).to("cpu")

    def _micro_batches(
        self, batch: TrainBatch, algorithm: AnyAlgorithm, size: int | None = None
    ) -> Iterator[MicroBatch]:
        size = size or self._micro_size
        if self._tokens:
            return token_batches(batch, cast(TokenAlgorithm, algorithm), size, self._device)
        algorithm = cast(Algorithm, algorithm)
        if algorithm.row_kind == "noised":
            return noised_batches(self._adapter, batch, algorithm, size, self._device)
        return transition_batches(self._adapter, batch, size, self._device)

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
            assert self._teachers is not None  # check_requires
            others["teacher"] = self._teachers.forward
        return others

    def _under(self, policy: Policy) -> Forward:
        def forward(micro: MicroBatch, step: int) -> Any:
            with self._policies.running(policy):
                return micro.forward(self._adapter, step)

        return forward

    def _trained_copies(self) -> dict[str, MasterOptimizer]:
        """Policies beside the current one that an optimizer of their own trains."""
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


def _teachers(setup: EngineSetup) -> Teachers | RecordedTeachers:
    return RecordedTeachers() if pooled(setup.config) else Teachers(setup)


def micro_batch_size(setup: EngineSetup) -> int:
    """Samples per forward and process."""
    return setup.config.actor.micro_batch_size or setup.config.rollout.max_num_seqs


def mini_batch_weight(batch: TrainBatch, algorithm: AnyAlgorithm, *, tokens: bool) -> float:
    """What the loss of a whole mini-batch, over all processes, is divided by."""
    if tokens:
        return total_weight(batch, cast(TokenAlgorithm, algorithm))
    return float(sample_weights(batch).double().sum())


def trainable_parameters(module: torch.nn.Module) -> dict[str, torch.nn.Parameter]:
    """Canonical name -> trainable parameter, in module order."""
    found: dict[str, torch.nn.Parameter] = {}
    for name, parameter in trainable_named_tensors(module):
        assert isinstance(parameter, torch.nn.Parameter)
        found[name] = parameter
    return found


def _enable_checkpointing(module: torch.nn.Module) -> None:
    enable = getattr(module, "enable_gradient_checkpointing", None)
    if not callable(enable):
        raise CapabilityError(
            f"actor.gradient_checkpointing is on, but {type(module).__name__} does not support it",
            remedy="set actor.gradient_checkpointing=false",
        )
    enable()
