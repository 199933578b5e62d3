"""Teachers beside rollout: routing, attempts, deadlines, the declared policy, and workers that are lost."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from omni_portable.config.schema import ModelConfig, TeacherConfig, TeacherPoolConfig
from omni_portable.contracts.errors import (
    CapabilityError,
    DataError,
    RewardError,
    TeacherError,
    WorkerLostError,
)
from omni_portable.contracts.teacher import TeacherOutput
from omni_portable.contracts.tokens import AnyTrajectory
from omni_portable.trainer.stages import form_groups, without
from omni_portable.trainer.teaching import InThread, RevivedTeacher, Taught, TeacherStage
from tests.trainer.trainer_fakes import make_reward, make_scored

ROUTED = ModelConfig(teachers={"a": TeacherConfig(path="a"), "b": TeacherConfig(path="b")}, teacher_field="who")
ONE = ModelConfig(teachers={"a": TeacherConfig(path="a")})


class Fake:
    """A teacher that says its number; `trouble` comes first, one for each call."""

    name = "teacher"

    def __init__(self, value: float = 1.0, trouble: Sequence[Exception | float] = ()) -> None:
        self.value, self.trouble, self.seen = value, list(trouble), list[list[str]]()

    async def teach_async(self, trajectories: Sequence[AnyTrajectory]) -> list[TeacherOutput]:
        self.seen.append([t.request.request_id for t in trajectories])
        assert all(not t.artifacts for t in trajectories), "media stay at home"
        if self.trouble:
            problem = self.trouble.pop(0)
            if isinstance(problem, Exception):
                raise problem
            await asyncio.sleep(problem)
        return [TeacherOutput("t", velocity=torch.full((2, 3), self.value)) for _ in trajectories]


def samples(count: int = 4, who: Callable[[int], str] = lambda index: "ab"[index % 2]) -> list[Any]:
    made = make_scored(count)
    return [replace(t, request=replace(t.request, metadata={"who": who(i)})) for i, t in enumerate(made)]


def run(stage: TeacherStage, trajectories: Sequence[Any]) -> Taught:
    return asyncio.run(stage.run(trajectories))


def one(worker: Any, **policy: Any) -> TeacherStage:
    return TeacherStage(ONE, TeacherPoolConfig(placement="pool", **policy), {"a": [worker]})


def test_each_sample_gets_the_teacher_that_its_prompt_names() -> None:
    a, b = Fake(1.0), Fake(2.0)
    trajectories = samples()
    taught = run(TeacherStage(ROUTED, TeacherPoolConfig(), {"a": [a], "b": [b]}), trajectories)
    assert [float(t.teacher.velocity[0, 0]) for t in taught.trajectories] == [1.0, 2.0, 1.0, 2.0]  # type: ignore[union-attr]
    assert (a.seen, b.seen) == ([["r0", "r2"]], [["r1", "r3"]])
    assert [t.artifacts for t in taught.trajectories] == [t.artifacts for t in trajectories], "they keep their media"
    assert taught.errors == {}


def test_a_prompt_of_no_teacher_is_refused() -> None:
    stage = TeacherStage(ROUTED, TeacherPoolConfig(on_error="drop_group"), {"a": [Fake()], "b": [Fake()]})
    with pytest.raises(DataError, match="sample 'r2' names the teacher 'c' in its field 'who'") as caught:
        run(stage, samples(who=lambda index: "c" if index == 2 else "a"))
    assert caught.value.choices == ("a", "b")


def test_failures_are_retried() -> None:
    worker = Fake(trouble=[RuntimeError("first"), RuntimeError("second")])
    assert run(one(worker, retries=2), samples()).errors == {}
    assert len(worker.seen) == 3


def test_a_failure_stops_the_run() -> None:
    with pytest.raises(TeacherError, match=r"the teacher 'a' failed: RuntimeError: broken \(after 2 attempts\)"):
        run(one(Fake(trouble=[RuntimeError("broken")] * 2), retries=1), samples())


def test_a_failure_leaves_its_groups_out_where_that_is_declared() -> None:
    trajectories = samples(who=lambda index: "a" if index < 2 else "b")
    workers = {"a": [Fake(trouble=[RuntimeError("broken")])], "b": [Fake()]}
    taught = run(TeacherStage(ROUTED, TeacherPoolConfig(on_error="drop_group"), workers), trajectories)
    assert sorted(taught.errors) == ["r0", "r1"]
    assert taught.trajectories[0].teacher is None
    reward = without(make_reward([1.0, 2.0, 3.0, 4.0]), trajectories, taught.errors)
    groups, dropped = form_groups(taught.trajectories, reward, 0)
    assert ([group.group_id for group in groups], dropped) == (["g1"], 1)
    everything = dict.fromkeys(("r0", "r1", "r2", "r3"), "no answer")
    with pytest.raises(RewardError, match="reward or teacher failed; the first, 'r0': no answer"):
        form_groups(trajectories, without(make_reward([1.0] * 4), trajectories, everything), 0)


def test_no_answer_in_time_is_a_failure() -> None:
    with pytest.raises(TeacherError, match=r"no answer within teacher.timeout_s=0.05 seconds \(after 1 attempts\)"):
        run(one(Fake(trouble=[60.0]), timeout_s=0.05), samples())


@pytest.mark.parametrize(
    "outputs", [[], [TeacherOutput("a")] * 4, [TeacherOutput("a", velocity=torch.tensor(float("nan")))] * 4]
)
def test_what_is_no_output_is_a_failure(outputs: list[TeacherOutput]) -> None:
    class Wrong(Fake):
        async def teach_async(self, trajectories: Sequence[AnyTrajectory]) -> list[TeacherOutput]:
            return outputs

    with pytest.raises(TeacherError, match="the teacher 'a' failed: TeacherError"):
        run(one(Wrong()), samples())
    assert sorted(run(one(Wrong(), on_error="drop_group"), samples()).errors) == ["r0", "r1", "r2", "r3"]


def test_settings_that_no_attempt_mends_are_raised_at_once() -> None:
    worker = Fake(trouble=[CapabilityError("too large")])
    with pytest.raises(CapabilityError, match="too large"):
        run(one(worker, retries=5, on_error="drop_group"), samples())
    assert len(worker.seen) == 1


def revived(*workers: Fake, restarts: int = 3) -> RevivedTeacher:
    left = list(workers)
    return RevivedTeacher("teacher-0", left.pop(0), lambda: left.pop(0), restarts)


def test_samples_of_a_lost_worker_are_handed_to_its_successor() -> None:
    successor = Fake(2.0)
    taught = run(one(revived(Fake(trouble=[WorkerLostError("gone")]), successor)), samples())
    assert successor.seen == [["r0", "r1", "r2", "r3"]]
    assert all(float(t.teacher.velocity[0, 0]) == 2.0 for t in taught.trajectories)  # type: ignore[union-attr]


def test_samples_are_handed_on_once() -> None:
    lost = [Fake(trouble=[WorkerLostError("gone")]) for _ in range(3)]
    with pytest.raises(WorkerLostError, match="lost twice over the same 4 samples"):
        run(one(revived(*lost), on_error="drop_group", retries=3), samples())
    assert lost[2].seen == []


def test_restarts_are_counted() -> None:
    with pytest.raises(WorkerLostError, match="once more than launcher.restarts allows: gone"):
        run(one(revived(Fake(trouble=[WorkerLostError("gone")]), restarts=0)), samples())


def test_a_worker_that_does_not_answer_is_ended() -> None:
    successor = Fake(2.0)
    taught = run(one(revived(Fake(trouble=[60.0]), successor), timeout_s=0.05, retries=1), samples())
    assert len(successor.seen) == 1
    assert taught.errors == {}


def test_a_teacher_of_this_process_answers_one_call_at_a_time_and_never_holds_up_the_loop() -> None:
    inside, free, together = threading.Event(), threading.Event(), list[int]()

    class Slow:
        busy = 0

        def teach(self, trajectories: Sequence[AnyTrajectory]) -> list[TeacherOutput]:
            self.busy += 1
            together.append(self.busy)
            inside.set()
            free.wait(30)
            self.busy -= 1
            return [TeacherOutput("t") for _ in trajectories]

    async def go() -> list[list[TeacherOutput]]:
        teacher = InThread(Slow())
        calls = [asyncio.ensure_future(teacher.teach_async(samples())) for _ in range(2)]
        while not inside.is_set():
            await asyncio.sleep(0.001)
        free.set()
        return await asyncio.gather(*calls)

    assert [len(outputs) for outputs in asyncio.run(go())] == [4, 4]
    assert together == [1, 1]


def test_errors_of_a_teacher_of_this_process_reach_the_caller() -> None:
    class Broken:
        def teach(self, trajectories: Sequence[AnyTrajectory]) -> list[TeacherOutput]:
            raise ZeroDivisionError("in the teacher")

    with pytest.raises(ZeroDivisionError):
        asyncio.run(InThread(Broken()).teach_async(samples()))
