"""One process's work: the methods of a train engine on its share of the batch, in step with the other ranks.

Nothing here knows how commands arrive: the driver of `ranks` sends them through pipes, an actor of a cluster would call
the same methods. All ranks must be given the same commands in the same order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from omni_backends.training.accumulate import RowLoss, accumulate
from omni_backends.training.fake import FakeLoss
from omni_backends.training.fsdp2 import checkpoint
from omni_backends.training.fsdp2.layout import Layout
from omni_backends.training.fsdp2.optim import ShardedOptimizer
from omni_backends.training.fsdp2.parallel import enable_sequence_parallel, enable_tensor_parallel
from omni_backends.training.fsdp2.shard import (
    data_mesh,
    full,
    promote,
    reshard,
    shard_module,
    swapped_parts,
    sync_gradients,
)
from omni_backends.training.fsdp2.shares import Share
from omni_backends.training.generated import OwnSamples
from omni_backends.training.lifecycle import TAGS
from omni_backends.training.micro import MicroBatch
from omni_backends.training.policies import Swap
from omni_backends.training.rows import RowLog
from omni_backends.training.worker import Worker, trainable_parameters
from omni_portable.contracts.algorithm import ScoreDistillation
from omni_portable.contracts.lifecycle import Ack
from omni_portable.contracts.tokens import AnyAlgorithm
from omni_portable.contracts.training import Policy
from omni_portable.contracts.weights import LoraInfo, TensorInfo
from omni_portable.models.setup import EngineSetup
from omni_portable.models.wan22.experts import Experts
from omni_portable.models.weights import canonical_name, tensor_info

COMMANDS = (
    "score",
    "sample",
    "accumulate_fake",
    "step_fake",
    "accumulate",
    "step",
    "discard",
    "update_old_policy",
    "describe",
    "gather",
    "sleep",
    "wake",
    "save",
    "load",
)
"""Methods that a driver may call."""
HANDED_ON = ("gather",)
"""Those whose tensors the driver does not look at, but hands on."""

Pass = tuple[Share, Iterable[MicroBatch]]
"""A share and its rows."""


@dataclass(frozen=True)
class RankFacts:
    """What the driver learns once a rank is built.

    Args:
        lora: of the adapter; None where all weights train.
        shapes: canonical name -> whole shape of every trained tensor, in the order in which they travel.
        dtypes: canonical name -> dtype in which it travels.
        copies: names of the policies kept beside the current one.
        trained: those of them that an optimizer of their own trains.
        routed: a row's timestep decides which part of the model works on it.
        optimizer_steps: done so far.
    """

    lora: LoraInfo | None
    shapes: Mapping[str, tuple[int, ...]]
    dtypes: Mapping[str, torch.dtype]
    copies: tuple[str, ...]
    trained: tuple[str, ...]
    routed: bool
    optimizer_steps: int


class Fsdp2Rank(Worker):
    """See the module.

    Args:
        setup: as of any engine; `setup.load.torch_device` is this rank's.
        rank / world_size: in the process group, which the caller has joined.
    """

    name = "fsdp2"

    def __init__(self, setup: EngineSetup, rank: int, world_size: int) -> None:
        self._layout = Layout.of(setup.config.actor)
        assert self._layout.size == world_size
        self._rank = rank
        self._kept: list[tuple[Share, OwnSamples]] = []
        super().__init__(setup)

    def facts(self) -> RankFacts:
        """What this rank holds."""
        return RankFacts(
            lora=self._lora,
            shapes={name: tuple(parameter.shape) for name, parameter in self._sharded.items()},
            dtypes=self._dtypes,
            copies=tuple(self._policies.copies),
            trained=tuple(self._trained_copies()),
            routed=isinstance(self._module, Experts),
            optimizer_steps=self.optimizer_steps,
        )

    def score(self, shares: Sequence[Share], policy: Policy) -> list[torch.Tensor | None]:
        """(B, W) fp32 log-probs of each share, no gradient; None for repeats, and from ranks that do not lead."""
        self._guard.require_awake("score transitions", *self._needs(policy))
        with torch.no_grad(), self._policies.running(policy):
            found = [self._score(share.batch, share.size) for share in shares]
        reshard(self._module)
        return [scored if self._counts(share) else None for share, scored in zip(shares, found, strict=True)]

    def sample(self, shares: Sequence[Share], algorithm: ScoreDistillation) -> None:
        """Keep shares of 'generated' rows and what the policy makes of them, until its step is done."""
        self._guard.require_awake("train", *TAGS)
        self._kept = [
            (share, OwnSamples(self._adapter, share.batch, algorithm, share.size, self._device)) for share in shares
        ]
        reshard(self._module)

    def accumulate_fake(
        self, update: int, algorithm: ScoreDistillation, total_weight: float
    ) -> tuple[list[RowLog | None], float]:
        """Forward and backward of the fake network over what was kept; the gradient stays for :meth:`step_fake`.

        Args:
            update: number of the update, from 0; each has noise of its own.
            total_weight: as of :meth:`accumulate`.

        Returns:
            As of :meth:`accumulate`, of the shares with a backward only.
        """
        self._optimizer.zero_grad()
        passes = [(share, own.fake_rows(update)) for share, own in self._kept if share.backward]
        with self._policies.standing_in("fake"):
            logs = self._passes(passes, FakeLoss.of(algorithm), total_weight, {})
        return logs, float(self._optimizer.gradient_norm())

    def step_fake(self, norm: float) -> float:
        """Update the fake network, clipped by the given norm; the learning rate used."""
        assert self._fake is not None
        return self._fake.step(torch.tensor(norm, device=self._device))

    def accumulate(
        self, algorithm: AnyAlgorithm, total_weight: float, shares: Sequence[Share] | None = None
    ) -> tuple[list[RowLog | None], float]:
        """Forward and backward of every share; the gradient stays for :meth:`step`.

        Args:
            total_weight: of the whole mini-batch, over all ranks.
            shares: None: those of :meth:`sample`.

        Returns:
            Rows of each share (None as in :meth:`score`), and the norm of the gradient over all ranks.
        """
        self._guard.require_awake("train", *TAGS)
        self._optimizer.zero_grad()
        if shares is None:
            passes: list[Pass] = [(share, own.policy_rows()) for share, own in self._kept]
        else:
            passes = [(share, self._micro_batches(share.batch, algorithm, share.size)) for share in shares]
        logs = self._passes(passes, algorithm, total_weight, self._others(algorithm))
        return logs, float(self._optimizer.gradient_norm())

    def step(self, norm: float) -> tuple[float, int]:
        """Clip by the given norm and update; (learning rate used, optimizer steps done)."""
        lr = self._optimizer.learning_rate()
        self._optimizer.step(torch.tensor(norm, device=self._device))
        self._kept = []
        self._policies.after_step()
        return lr, self.optimizer_steps

    def discard(self) -> None:
        """Drop the accumulated gradient, and what was kept to make it."""
        self._kept = []
        self._optimizer.zero_grad()

    def describe(self, policy: Policy, names: Sequence[str]) -> dict[str, TensorInfo]:
        """Shape, dtype and checksum of whole tensors; empty from all ranks but the first."""
        return {name: tensor_info(tensor) for name, tensor in self.gather(policy, names).items()}

    def gather(self, policy: Policy, names: Sequence[str]) -> dict[str, torch.Tensor]:
        """Whole tensors of a policy in the dtype in which they travel; empty from all ranks but the first."""
        self._guard.require_awake("give weights", *self._needs(policy))
        masters = self._policies.masters(policy)
        found: dict[str, torch.Tensor] = {}
        for name in names:
            whole = full(self._sharded[name], masters[name].detach())
            if self._rank == 0:
                # A copy even where one process holds the whole: what hashes it must not pin the shard's own memory.
                found[name] = whole.to("cpu", self._dtypes[name], copy=True)
        return found

    def sleep(self, level: int = 1, tags: Sequence[Any] = TAGS) -> Ack:
        """As of any engine; what is gathered is freed first."""
        reshard(self._module)
        for teacher in self._teachers.modules() if self._teachers else ():
            reshard(teacher)
        return super().sleep(level, tags)

    def save(self, folder: Path) -> checkpoint.Saved:
        """Write this rank's shards of weights, policy copies and optimizer state below an existing folder."""
        self._guard.require_awake("save", *TAGS)
        copies, trained = self._policies.copies, self._trained_copies()
        return checkpoint.save_shards(folder, self._sharded, self._optimizer, copies, trained)

    def load(self, folder: Path, saved: checkpoint.Saved) -> None:
        """Restore this rank's shards from a folder that the driver has checked."""
        self._guard.require_awake("load", *TAGS)
        reshard(self._module)
        copies, trained = self._policies.copies, self._trained_copies()
        checkpoint.load_shards(folder, self._sharded, self._optimizer, copies, saved, trained)

    def _distribute(self) -> None:
        actor, device = self._setup.config.actor, self._setup.device
        if self._layout.sequence > 1:
            enable_sequence_parallel(self._module, self._layout, device.torch_device_type)
        before = promote(self._module)
        self._dtypes = {
            canonical_name(name): before[id(parameter)]
            for name, parameter in self._module.named_parameters()
            if id(parameter) in before
        }
        mesh, tensor_mesh = data_mesh(self._layout, device.torch_device_type)
        if tensor_mesh is not None:
            enable_tensor_parallel(self._adapter, self._module, tensor_mesh, lora=self._lora is not None)
        pin = bool(device.capabilities().features.get("pinned_memory"))
        dtype = self._setup.load.dtype
        shard_module(self._module, mesh, actor, dtype, pin)
        teachers = self._teachers.modules() if self._teachers else []
        if len(teachers) == 1:  # several are whole on every rank: rows choose, and ranks may choose differently
            shard_module(teachers[0], mesh, actor, dtype, pin)
        self._sharded = trainable_parameters(self._module)

    def _make_optimizer(self, parameters: Mapping[str, torch.nn.Parameter]) -> ShardedOptimizer:
        return ShardedOptimizer(parameters, self._setup.config.actor, self._device)

    def _swap(self) -> Swap:
        def swap(
            parameters: Mapping[str, torch.nn.Parameter], tensors: Mapping[str, torch.Tensor]
        ) -> AbstractContextManager[None]:
            return swapped_parts(self._module, parameters, tensors)

        return swap

    def _passes(
        self, passes: Sequence[Pass], algorithm: RowLoss, total_weight: float, others: Mapping[Policy, Any]
    ) -> list[RowLog | None]:
        last = max((at for at, (share, _) in enumerate(passes) if share.backward), default=-1)
        logs: list[RowLog | None] = []
        for at, (share, micros) in enumerate(passes):
            log = self._pass(share, micros, algorithm, total_weight, others, at == last)
            logs.append(log if self._counts(share) else None)
        reshard(self._module)
        return logs

    def _pass(
        self,
        share: Share,
        micros: Iterable[MicroBatch],
        algorithm: RowLoss,
        total_weight: float,
        others: Mapping[Policy, Any],
        last: bool,
    ) -> RowLog:
        if not share.backward:
            return self._forward_only(micros)
        return accumulate(
            self._adapter,
            micros,
            algorithm,
            total_weight=total_weight,
            others=others,
            before_backward=self._before_backward(last),
            scale=0.0 if share.kind == "repeat" else 1.0,
        )

    def _before_backward(self, last: bool) -> Callable[[bool], None] | None:
        """What `accumulate` calls ahead of each backward of a pass; `last`: it is the mini-batch's last with one."""
        each = self._setup.config.actor.gradient_sync == "each"
        return lambda final: sync_gradients(self._module, each or (last and final))

    def _forward_only(self, micros: Iterable[MicroBatch]) -> RowLog:
        log = RowLog()
        with torch.no_grad():
            for micro in micros:
                for step in range(micro.num_steps):
                    log.add_log_probs(micro.recorded(micro.forward(self._adapter, step)))
                log.end_micro_batch(micro.common.request_ids, None)
        return log

    def _counts(self, share: Share) -> bool:
        return share.kind != "repeat" and self._layout.leads(self._rank)
