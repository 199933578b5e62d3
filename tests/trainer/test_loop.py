"""The loop: what each step produces, and when it validates, logs and saves."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from omni_portable.config.schema import RolloutConfig, RunConfig, TrainerConfig
from omni_portable.contracts import registry
from omni_portable.contracts.dataplane import ScoredGroup
from omni_portable.contracts.registry import NoOptions
from omni_portable.data.prompts import PromptRow, PromptSampler
from omni_portable.rollout.replay_buffer import ReplayBuffer
from omni_portable.trainer.drawing import Schedules, drawing
from omni_portable.trainer.loop import Loop, reward_metrics, throughput
from omni_portable.trainer.producer import Producer
from omni_portable.trainer.progress import SilentProgress
from omni_portable.trainer.timing import StageClock
from tests.support.requests import SCHEDULE, make_trajectory
from tests.trainer.trainer_fakes import FixedReward, GroupMean, make_reward

ROWS = [PromptRow(name, f"prompt {name}") for name in "abcd"]


class RecordingRollout:
    def __init__(self) -> None:
        self.rounds: list[list[Any]] = []

    def pieces(self, requests: list) -> list[list]:
        return [requests[:2], requests[2:]]

    async def draw(self, requests: list, clock: StageClock) -> list:
        return await self.run(requests)

    async def run(self, requests: list) -> list:
        self.rounds.append(requests)
        return [make_trajectory(request) for request in requests]


def make_producer() -> tuple[Producer, RecordingRollout, ReplayBuffer]:
    rollout = RecordingRollout()
    buffer = ReplayBuffer(registry.load("data_plane", "local")(NoOptions()), max_staleness=0)
    config = RunConfig(rollout=RolloutConfig(n=2), trainer=TrainerConfig(seed=3))
    producer = Producer(
        config=config,
        sampler=PromptSampler(ROWS, 2, shuffle=False, seed=0),
        algorithm=GroupMean(),
        requests=drawing(config, GroupMean(), Schedules(SCHEDULE, SCHEDULE)),
        rollout=rollout,  # type: ignore[arg-type]
        reward=FixedReward(make_reward([0.0, 1.0, 2.0, 3.0])),  # type: ignore[arg-type]
        buffer=buffer,
        clock=StageClock(),
        progress=SilentProgress(),
    )
    return producer, rollout, buffer


def test_each_step_has_its_own_prompts_seed_and_ids() -> None:
    producer, rollout, buffer = make_producer()
    for step in (1, 2):
        asyncio.run(producer.produce(step))
    first, second = rollout.rounds
    assert [r.prompt_id for r in first] == ["a", "a", "b", "b"]
    assert [r.prompt_id for r in second] == ["c", "c", "d", "d"]
    assert first[0].seed != second[0].seed
    assert not {r.request_id for r in first} & {r.request_id for r in second}
    assert len(buffer) == 4
    assert [tag.submission for tag in buffer._plane.tags()] == [0, 1, 2, 3]


def test_a_step_is_the_same_whether_or_not_others_came_before() -> None:
    producer, rollout, buffer = make_producer()
    for step in (1, 2):
        assert asyncio.run(producer.produce(step)) == 2
    resumed, alone, other = make_producer()
    asyncio.run(resumed.produce(2))
    assert alone.rounds[0] == rollout.rounds[1]
    assert other._plane.tags() == buffer._plane.tags()[2:]


def test_dropped_groups_are_counted_per_step() -> None:
    producer, rollout, buffer = make_producer()
    producer.reward = FixedReward(make_reward([0.0, 1.0, 2.0, 3.0], failed=["r1"]))  # type: ignore[assignment]
    producer.reward.reward.failed = ["step-1/00000/001"]
    asyncio.run(producer.produce(1))
    assert (producer.logs[1].dropped_groups, len(buffer)) == (1, 1)


class Scheduled(Loop):
    """A loop whose work is to write down that it was asked for."""

    async def _step(self, step: int) -> dict[str, float]:
        for stage in ("rollout", "reward", "update", "sync"):
            self.clock.add(stage, 0.25)
        self.events.append(f"step {step}")  # type: ignore[attr-defined]
        return {"reward/samples": 8.0}

    def _statistics(self) -> dict[str, float]:
        return {"perf/rollout_samples": 16.0}

    async def _validate(self, step: int) -> dict[str, float]:
        self.events.append(f"validate {step}")  # type: ignore[attr-defined]
        return {"validation/count": 1.0}

    def _save(self, step: int) -> None:
        self.events.append(f"save {step}")  # type: ignore[attr-defined]


class IdleTurns:
    def __init__(self, begun: Callable[[], object] = bool) -> None:
        self._begun = begun

    async def start(self) -> None:
        self._begun()

    async def close(self) -> None: ...


def events(run_dir: Path, trainer: TrainerConfig, *, start: int = 0, validation: bool = True) -> list[str]:
    logged = SimpleNamespace(log=lambda step, metrics: loop.events.append(f"log {step}"))  # type: ignore[attr-defined]
    fields: dict[str, Any] = dict.fromkeys(
        ("actor", "engine", "producer", "buffer", "advantage", "update", "turns", "checkpoint")
    )
    loop = Scheduled(
        **fields,
        config=RunConfig(trainer=trainer),
        run_dir=run_dir,
        validation=object() if validation else None,  # type: ignore[arg-type]
        loggers=[logged],  # type: ignore[list-item]
        clock=StageClock(),
        progress=SilentProgress(),
        start_step=start,
    )
    loop.events = []  # type: ignore[attr-defined]
    loop.turns = IdleTurns()  # type: ignore[assignment]
    asyncio.run(loop.run())
    return loop.events  # type: ignore[attr-defined]


def test_validation_before_and_after_and_a_checkpoint_at_the_end(tmp_path: Path) -> None:
    found = events(tmp_path, TrainerConfig(total_steps=2, save_interval=0, validate_interval=0))
    assert found == ["validate 0", "log 0", "step 1", "log 1", "step 2", "validate 2", "log 2", "save 2"]


def test_intervals(tmp_path: Path) -> None:
    found = events(tmp_path, TrainerConfig(total_steps=5, save_interval=2, validate_interval=3, validate_before=False))
    assert [e for e in found if e.startswith("validate")] == ["validate 3", "validate 5"]
    assert [e for e in found if e.startswith("save")] == ["save 2", "save 4", "save 5"]
    assert found.index("log 2") < found.index("save 2"), "a checkpoint never precedes its step's row"


def test_a_continuation_neither_repeats_nor_validates_before(tmp_path: Path) -> None:
    found = events(tmp_path, TrainerConfig(total_steps=4, save_interval=0), start=2)
    assert found == ["step 3", "log 3", "step 4", "validate 4", "log 4", "save 4"]
    assert events(tmp_path, TrainerConfig(total_steps=4), start=4) == []


def test_no_validation_set(tmp_path: Path) -> None:
    assert events(tmp_path, TrainerConfig(total_steps=1), validation=False) == ["step 1", "log 1", "save 1"]


def test_starting_belongs_to_no_step(tmp_path: Path) -> None:
    starting, ticks = [0.0], itertools.count()
    clock = StageClock(lambda: starting[0] + next(ticks))
    rows: list[Mapping[str, float]] = []
    logged = SimpleNamespace(log=lambda step, metrics: rows.append(metrics))
    fields: dict[str, Any] = dict.fromkeys(
        ("actor", "engine", "producer", "buffer", "advantage", "update", "checkpoint", "validation")
    )
    loop = Scheduled(
        **fields,
        config=RunConfig(trainer=TrainerConfig(total_steps=1)),
        run_dir=tmp_path,
        turns=IdleTurns(lambda: starting.insert(0, 1000.0)),  # type: ignore[arg-type]
        loggers=[logged],  # type: ignore[list-item]
        clock=clock,
        progress=SilentProgress(),
        start_step=0,
    )
    loop.events = []  # type: ignore[attr-defined]
    asyncio.run(loop.run())
    assert 0.0 < rows[0]["role_s/actor/idle"] < 1000.0
    assert 0.0 < rows[0]["role_s/rollout/idle"] < 1000.0


def test_samples_per_second_are_of_those_that_were_drawn_meanwhile() -> None:
    timing = {"timing_s/step": 4.0, "role_s/rollout/busy": 2.0, "critical_path_s/other": 1.0}
    assert throughput({"reward/samples": 16.0, "perf/rollout_samples": 32.0}, timing) == {
        "perf/samples_per_s": 4.0,
        "perf/rollout_samples_per_s": 16.0,
        "perf/outside_stages": 0.25,
    }


def test_reward_metrics() -> None:
    groups = [
        ScoredGroup("a", 0, [], rewards=[0.0, 1.0], components={"s/score": [0.0, 2.0]}),
        ScoredGroup("b", 1, [], rewards=[0.5, 0.5], components={"s/score": [1.0, 1.0]}),
    ]
    metrics = reward_metrics(groups)
    assert metrics["reward/mean"] == 0.5
    assert metrics["reward/std"] == pytest.approx((0.125) ** 0.5)
    assert (metrics["reward/min"], metrics["reward/max"]) == (0.0, 1.0)
    assert metrics["reward/zero_std_groups"] == 0.5
    assert metrics["reward/s/score"] == 1.0
