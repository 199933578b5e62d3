"""A toy algorithm, a device and batches for tests of the train engine, around the toy model of all tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace

import torch
from torch import nn

from omni_portable.algorithms.base import DiffusionAlgorithm
from omni_portable.config.schema import RunConfig
from omni_portable.contracts.algorithm import LossRows, Replay, Requires, Rows, TrainBatch
from omni_portable.contracts.lifecycle import Ack
from omni_portable.contracts.model import ModelLoad
from omni_portable.contracts.rollout import RolloutRequest, SamplingPlan, Schedule, Trajectory
from omni_portable.models.policy import join_conditioning, transition
from omni_portable.models.setup import EngineSetup
from tests.support.toy_adapter import CHANNELS, TOKENS, WIDTH, ToyAdapter

SIZE = 16
"""Pixels of a side."""
SHAPE = (CHANNELS, SIZE // 8, SIZE // 8)
SCHEDULE = Schedule((1.0, 0.75, 0.5, 0.25, 0.0), key="toy")
PLAN = SamplingPlan("sde", noise_level=0.7, stochastic_steps=(0, 2))


@dataclass
class ToyAlgorithm(DiffusionAlgorithm):
    """The clipped policy gradient, optionally with a pull towards the reference mean."""

    clip: float = 0.2
    pull: float = 0.0
    name: str = "toy"
    requires: Requires = field(default_factory=Requires)
    seen: list[Rows] = field(default_factory=list)

    def loss(self, replay: Replay, rows: Rows) -> LossRows:
        self.seen.append(rows)
        ratio = torch.exp(replay.log_prob - rows.old_log_prob)
        bounded = ratio.clamp(1 - self.clip, 1 + self.clip)
        loss = torch.maximum(-rows.advantage * ratio, -rows.advantage * bounded)
        if replay.reference_mean is not None:
            loss = loss + self.pull * (replay.mean - replay.reference_mean).square().flatten(1).mean(1)
        return LossRows(loss, {"actor/ratio": ratio, "actor/ppo_kl": rows.old_log_prob - replay.log_prob})


class FakePool:
    """Level-1 sleep by hand: tensors lose their storage and get it back."""

    def __init__(self) -> None:
        self.owners: list[tuple[str, object]] = []
        self.kept: list[tuple[torch.Tensor, torch.Tensor]] = []

    def register(self, tag: str, owner: object) -> None:
        self.owners.append((tag, owner))

    def sleep(self, level: int = 1, tags: Sequence[str] | None = None) -> Ack:
        for tag, owner in self.owners:
            if tags is None or tag in tags:
                for tensor in _tensors(owner):
                    self.kept.append((tensor, tensor.data))
                    tensor.data = torch.empty(0, dtype=tensor.dtype)
        return Ack("sleep", bytes=sum(t.nbytes for _, t in self.kept))

    def wake(self, tags: Sequence[str] | None = None) -> Ack:
        for tensor, data in self.kept:
            tensor.data = data
        self.kept = []
        return Ack("wake")


def _tensors(owner: object) -> list[torch.Tensor]:
    if isinstance(owner, nn.Module):
        return [*owner.parameters(), *owner.buffers()]
    return [t for state in owner.state.values() for t in state.values()]


def make_config(**actor: object) -> RunConfig:
    config = RunConfig()
    config.model.family, config.model.path = "toy", "toy-folder"
    config.rollout.max_num_seqs = 4
    config.actor.lr = 1e-2
    for name, value in actor.items():
        assert hasattr(config.actor, name)
        setattr(config.actor, name, value)
    return config


def make_setup(
    config: RunConfig | None = None, *, requires: Requires | None = None, dtype: torch.dtype = torch.float32
) -> EngineSetup:
    device = SimpleNamespace(memory=SimpleNamespace(pool=lambda name: FakePool()))
    load = ModelLoad(Path("toy-folder"), torch.device("cpu"), dtype)
    return EngineSetup(config or make_config(), device, load, requires or Requires())


def make_trajectories(
    count: int,
    *,
    plan: SamplingPlan = PLAN,
    schedule: Schedule = SCHEDULE,
    guidance_scale: float = 1.0,
    seed: int = 0,
    adapter: ToyAdapter | None = None,
    pack: int = 4,
) -> list[Trajectory]:
    """Roll out `count` samples under the toy's initial weights (or the adapter's), `pack` at a time."""
    adapter = adapter or ToyAdapter(make_setup().load)
    generator = torch.Generator().manual_seed(seed)
    latents = torch.randn(count, *SHAPE, generator=generator)
    tokens = torch.randn(count, TOKENS, WIDTH, generator=generator)
    empty = torch.zeros(count, TOKENS, WIDTH) if guidance_scale != 1.0 else None
    noise = torch.randn(len(plan.stochastic_steps), count, *SHAPE, generator=generator)
    found: list[Trajectory] = []
    for first in range(0, count, pack):
        rows = slice(first, min(first + pack, count))
        cond = {"tokens": tokens[rows]}
        negative = None if empty is None else {"tokens": empty[rows]}
        steps = _roll(adapter, latents[rows], noise[:, rows], cond, negative, schedule, plan, guidance_scale)
        for row, index in enumerate(range(rows.start, rows.stop)):
            found.append(
                Trajectory(
                    request=_request(index, schedule, plan, guidance_scale),
                    schedule_fingerprint=schedule.fingerprint,
                    policy_version=0,
                    step_indices=torch.tensor(plan.stochastic_steps),
                    latents=torch.stack([x[row] for x, _, _ in steps]),
                    next_latents=torch.stack([y[row] for _, y, _ in steps]),
                    log_probs=torch.stack([lp[row] for _, _, lp in steps]),
                    final_latents=steps[-1][1][row],
                    conditioning=join_conditioning(
                        {"tokens": tokens[index]}, None if empty is None else {"tokens": empty[index]}
                    ),
                    artifacts={},
                    engine="toy",
                )
            )
    return found


def _roll(adapter, latents, noise, cond, negative, schedule, plan, guidance_scale):
    steps = []
    with torch.no_grad():
        for index in range(schedule.num_steps):
            stochastic = index in plan.stochastic_steps
            step = transition(
                adapter,
                latents=latents,
                step_index=torch.full((len(latents),), index),
                schedule=schedule,
                kind=plan.kind if stochastic else "ode",
                noise_level=plan.noise_level,
                include_normalizer=plan.include_normalizer,
                conditioning=cond,
                negative=negative,
                guidance_scale=guidance_scale,
                noise=noise[plan.stochastic_steps.index(index)] if stochastic else None,
            )
            if stochastic:
                steps.append((latents, step.next_latents, step.log_prob))
            latents = step.next_latents
    return steps


def _request(index: int, schedule: Schedule, plan: SamplingPlan, guidance_scale: float) -> RolloutRequest:
    return RolloutRequest(
        request_id=f"r{index}",
        group_id=f"g{index // 2}",
        prompt_id=f"p{index // 2}",
        sample_index=index % 2,
        seed=0,
        prompt="a toy",
        height=SIZE,
        width=SIZE,
        schedule=schedule,
        plan=plan,
        guidance_scale=guidance_scale,
    )


def make_batch(trajectories: list[Trajectory], **fields: object) -> TrainBatch:
    advantages = torch.linspace(-1.0, 1.3, len(trajectories))
    return replace(TrainBatch(trajectories, advantages), **fields)


def snapshot(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: tensor.detach().clone() for name, tensor in tensors.items()}


def assert_equal(left: Mapping[str, torch.Tensor], right: Mapping[str, torch.Tensor]) -> None:
    assert left.keys() == right.keys()
    for name in left:
        assert torch.equal(left[name], right[name]), name
