"""The driver of FSDP2 training: deals a batch to its ranks, brings their answers together, and holds no weights."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import torch

from omni_backends.training.checks import check_config, check_requires
from omni_backends.training.export import export_full, export_lora
from omni_backends.training.fsdp2.checkpoint import check_checkpoint, finish_save
from omni_backends.training.fsdp2.distil import train_fake
from omni_backends.training.fsdp2.layout import Layout
from omni_backends.training.fsdp2.process import RankSpec
from omni_backends.training.fsdp2.ranks import Ranks
from omni_backends.training.fsdp2.shares import Round, check_batch, deal, in_order
from omni_backends.training.fsdp2.stream import BUCKET_BYTES, GatheredStream, buckets
from omni_backends.training.generated import check_generated
from omni_backends.training.lifecycle import TAGS, SleepGuard
from omni_backends.training.rows import RowLog, check_norm, filled_up
from omni_backends.training.worker import micro_batch_size, mini_batch_weight
from omni_portable.config.kinds import trained_kind
from omni_portable.contracts.algorithm import ScoreDistillation, TrainBatch
from omni_portable.contracts.device import SleepTag
from omni_portable.contracts.errors import CapabilityError, NonFiniteError
from omni_portable.contracts.lifecycle import Ack
from omni_portable.contracts.tokens import AnyAlgorithm
from omni_portable.contracts.training import Policy, StepResult
from omni_portable.contracts.weights import TensorInfo, WeightManifest, WeightStream
from omni_portable.models.setup import EngineSetup, load_adapter, load_token_adapter
from omni_portable.models.weights import apply_tensors
from omni_portable.rollout.distant import brought


class Fsdp2TrainEngine:
    """A train engine (see `contracts.training.TrainEngine`) of `actor.world_size` processes, started here.

    Loss, gradients and metrics are those of the single-process engine whatever the number of processes: samples are
    dealt in the same micro-batches and rows are brought back into their order before anything is averaged.

    Args:
        setup: configuration, device, how to load the model, and what the algorithm requires. Every process loads the
            model by itself; random numbers are drawn in none of them.

    Raises:
        CapabilityError: an option that this engine or the model cannot serve.
        ConfigError: a value of the `actor` section that cannot work.
        RankError: a process could not start.
    """

    name = "fsdp2"
    rank_class = "omni_backends.training.fsdp2.rank:Fsdp2Rank"
    """'module:class' of what each process builds."""
    distils = True
    """It trains the steps of the policy's own sampling, with a fake score network beside the policy."""

    def __init__(self, setup: EngineSetup) -> None:
        check_config(setup, self.name)
        if setup.requires.fake_score and not self.distils:
            raise CapabilityError(
                f"the algorithm trains a fake score network beside the policy, which train engine '{self.name}' cannot",
                remedy="set actor.engine=fsdp2 or single",
            )
        config, self._setup = setup.config, setup
        self._layout = Layout.of(config.actor)
        self._micro_size = micro_batch_size(setup)
        self._tokens = trained_kind(config) == "autoregressive"
        threads = config.device.threads or torch.get_num_threads()
        spec = RankSpec(
            config=config,
            load=setup.load,
            requires=setup.requires,
            device=setup.device.name,
            generation=setup.device.generation,
            threads=threads,
            rank_class=self.rank_class,
        )
        self._ranks = Ranks(self.name, spec, self._layout.size, setup.spawn)
        self._facts = self._ranks.facts[0]
        self._guard = SleepGuard(self.name, _RankPools(self._ranks))
        self._version = 0
        self._bucket_bytes = min(BUCKET_BYTES, setup.spawn.bucket_bytes) if setup.spawn else BUCKET_BYTES
        self._infos: dict[Policy, dict[str, TensorInfo]] = {}
        self.optimizer_steps: int = self._facts.optimizer_steps
        """Optimizer steps done since the start of the run (restored by :meth:`load`)."""

    @property
    def pids(self) -> list[int]:
        """Process ids of the ranks."""
        return self._ranks.pids

    def log_probs(self, batch: TrainBatch, policy: Policy = "current") -> torch.Tensor:
        """(N, W) fp32 on the CPU, no gradient, in the micro-batches that training uses (equal weights: equal bits).

        W are the stored steps, or the tokens of the longest response; NaN where a response has ended.
        """
        self._guard.require_awake("score transitions", *self._needs(policy))
        self._check(batch, "tokens" if self._tokens else "transitions")
        rounds = deal(batch, self._micro_size, self._layout.data, train=False)
        results = self._ranks.call("score", self._shares(rounds), policy=policy)
        return filled_up(in_order(results, rounds, self._layout))

    def train_step(self, batch: TrainBatch, algorithm: AnyAlgorithm) -> StepResult:
        """One optimizer step over the whole batch (see `accumulate` for the loss).

        Raises:
            NonFiniteError: a loss or the gradient is not finite; weights, optimizer and averages are unchanged (updates
                that a fake score network had before stay).
            DataError: every sample has weight 0, or the batch's tensors do not fit.
            ConsistencyError: trajectories of one micro-batch that cannot share a forward, or that ran another schedule
                than their request's; samples that would need different forwards on different ranks.
            CapabilityError: no stored transitions, or a required policy that this engine was not built with.
            RankError: a rank died; the others were stopped.
        """
        self._guard.require_awake("train", *TAGS)
        check_requires(algorithm, self._setup)
        own = algorithm.row_kind == "generated"
        if own and not self.distils:
            raise CapabilityError(
                f"algorithm '{algorithm.name}' trains the steps of its own sampling, which train engine '{self.name}' "
                "cannot",
                remedy="set actor.engine=fsdp2 or single",
            )
        self._check(batch, algorithm.row_kind)
        total = mini_batch_weight(batch, algorithm, tokens=self._tokens)
        rounds = deal(batch, self._micro_size, self._layout.data, train=True)
        beside: dict[str, float] = {}
        if own:
            distilled, shares = cast(ScoreDistillation, algorithm), self._shares(rounds)
            check_generated(batch, distilled, self._micro_size)
            beside = train_fake(self._ranks, rounds, shares, self._layout, batch, distilled, total)
            self._changed()
        log, norm = self._accumulate(rounds, algorithm, total, kept=own)
        try:
            log.check_finite()
            if not math.isfinite(norm):
                self._trace(rounds, algorithm, total)
                check_norm(norm, [trajectory.request.request_id for trajectory in batch.trajectories])
        except NonFiniteError:
            self._ranks.call("discard")
            raise
        lr, self.optimizer_steps = self._ranks.call("step", norm=norm)[0]
        self._changed()
        metrics = {**log.metrics(total if self._tokens else None), "actor/grad_norm": norm, "actor/lr": lr}
        return StepResult(metrics | beside, log.log_probs())

    def update_old_policy(self, decay: float) -> None:
        """old <- decay * old + (1 - decay) * current (0 copies), for algorithms that require an old policy."""
        self._guard.require_awake("update its old policy", *TAGS)
        self._ranks.call("update_old_policy", decay=decay)
        self._changed()

    def weights(self, policy: Policy = "current") -> WeightStream:
        """A policy's trained tensors for rollout, whole, in the dtype that rollout computes in.

        They are gathered in buckets while the stream is read, and hashed in buckets before. Ranks that a launcher
        placed keep the buckets of 64 KiB and more; the stream has distant tensors then (see `rollout.distant`).
        """
        facts = self._facts
        manifest = WeightManifest(
            mode="full" if facts.lora is None else "adapter", tensors=self._described(policy), lora=facts.lora
        )

        def gather(names: Sequence[str]) -> dict[str, torch.Tensor]:
            found: dict[str, torch.Tensor] = self._ranks.call("gather", policy=policy, names=names)[0]
            return found

        return GatheredStream(manifest, self._sizes(), gather, lambda: self._version, self._bucket_bytes)

    def weights_checksum(self, policy: Policy = "current") -> dict[str, str]:
        """Checksum per tensor of what :meth:`weights` streams."""
        return {name: info.checksum for name, info in self._described(policy).items()}

    def sleep(self, level: int = 1, tags: Sequence[SleepTag] = TAGS) -> Ack:
        """Release device memory of every rank, keeping an exact copy off the device; level 1 only."""
        return self._guard.sleep(level, tuple(tags))

    def wake(self, tags: Sequence[SleepTag] = TAGS) -> Ack:
        """Restore what sleeps, bit for bit."""
        return self._guard.wake(tuple(tags))

    def save(self, folder: Path) -> None:
        """Write shards of weights, policy copies and optimizer state (see `fsdp2.checkpoint`) into an existing folder.

        Raises:
            RunDirectoryError: a file cannot be written.
        """
        self._guard.require_awake("save", *TAGS)
        finish_save(folder, self._ranks.call("save", folder=folder)[0], self._facts.lora)

    def load(self, folder: Path) -> None:
        """Continue exactly where :meth:`save` was called, by any number of ranks; nothing changes unless every file is
        right.

        Raises:
            CheckpointError: a file is missing, truncated, corrupt or does not fit this run; names it.
        """
        self._guard.require_awake("load", *TAGS)
        facts = self._facts
        saved = check_checkpoint(folder, facts.shapes, facts.copies, facts.lora, facts.trained)
        self._ranks.call("load", folder=folder, saved=saved)
        self.optimizer_steps = saved.steps_done
        self._changed()

    def export(self, folder: Path, policy: Policy = "current") -> None:
        """Write a LoRA (peft's; of a diffusion model also diffusers'), or a model folder, of the named policy.

        For the latter this process loads the model, and lets it go again.
        """
        stream = self.weights(policy)
        folder.mkdir(parents=True, exist_ok=True)
        if self._facts.lora is not None:
            config = self._setup.config
            export_lora(
                folder,
                {name: brought(tensor) for name, tensor in stream},
                self._facts.lora,
                config.model.path,
                trained_kind(config),
            )
            return
        setup = replace(self._setup, load=replace(self._setup.load, torch_device=torch.device("cpu")))
        adapter: Any = (load_token_adapter if self._tokens else load_adapter)(setup, ("transformer",))
        for name, tensor in stream:
            apply_tensors(adapter.transformer, {name: tensor})
        export_full(folder, adapter.transformer)

    def close(self) -> None:
        """End the ranks."""
        self._ranks.close()

    def _check(self, batch: TrainBatch, rows: str) -> None:
        alike, routed = self._layout.data > 1, self._facts.routed
        check_batch(batch, self._micro_size, rows=rows, alike=alike, routed=routed)

    def _accumulate(
        self, rounds: Sequence[Round], algorithm: AnyAlgorithm, total: float, kept: bool = False
    ) -> tuple[RowLog, float]:
        """Rows of all rounds in the batch's order, and the norm; `kept`: the ranks have their shares."""
        shares = None if kept else self._shares(rounds)
        results = self._ranks.call("accumulate", shares, algorithm=algorithm, total_weight=total)
        log = RowLog()
        for part in in_order([logs for logs, _ in results], rounds, self._layout):
            log.extend(part)
        return log, results[0][1]

    def _trace(self, rounds: Sequence[Round], algorithm: AnyAlgorithm, total: float) -> None:
        """Which samples a gradient that is not finite came from: the rounds again, one at a time."""
        for dealt in rounds:
            if dealt[0].backward:
                if own := algorithm.row_kind == "generated":
                    self._ranks.call("sample", self._shares([dealt]), algorithm=algorithm)
                _, norm = self._accumulate([dealt], algorithm, total, kept=own)
                names = [t.request.request_id for share in dealt for t in share.batch.trajectories]
                check_norm(norm, list(dict.fromkeys(names)))

    def _shares(self, rounds: Sequence[Round]) -> list[dict[str, Any]]:
        """Per rank its shares, one of each round."""
        return [
            {"shares": [dealt[self._layout.data_rank(rank)] for dealt in rounds]} for rank in range(self._layout.size)
        ]

    def _needs(self, policy: Policy) -> tuple[SleepTag, ...]:
        return TAGS if policy in self._facts.copies else ("weights",)

    def _described(self, policy: Policy) -> dict[str, TensorInfo]:
        self._guard.require_awake("give weights", *self._needs(policy))
        if policy not in self._infos:
            found: dict[str, TensorInfo] = {}
            for names in buckets(self._sizes()):
                found |= self._ranks.call("describe", policy=policy, names=names)[0]
            self._infos[policy] = found
        return self._infos[policy]

    def _sizes(self) -> dict[str, int]:
        """Bytes of every whole tensor as it travels."""
        facts = self._facts
        return {name: math.prod(shape) * facts.dtypes[name].itemsize for name, shape in facts.shapes.items()}

    def _changed(self) -> None:
        self._version += 1
        self._infos.clear()


class _RankPools:
    """The pools of all ranks as one."""

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks

    def sleep(self, level: int = 1, tags: Sequence[SleepTag] | None = None) -> Ack:
        return _together(self._ranks.call("sleep", level=level, tags=tags))

    def wake(self, tags: Sequence[SleepTag] | None = None) -> Ack:
        return _together(self._ranks.call("wake", tags=tags))


def _together(acks: Sequence[Ack]) -> Ack:
    """The ranks' acknowledgements as one: bytes of all, seconds of the slowest."""
    return replace(
        acks[0],
        bytes=sum(ack.bytes for ack in acks),
        seconds=max(ack.seconds for ack in acks),
        detail="; ".join(f"rank {rank}: {ack.detail}" for rank, ack in enumerate(acks)),
    )
