"""Roles in processes of their own: calls, aborts, weights, logs, and processes that are killed."""

from __future__ import annotations

import asyncio
import os
import signal
from dataclasses import replace
from functools import partial

import psutil
import pytest
import torch

ray = pytest.importorskip("ray")

from omni_backends.launch.ray import RayOptions, rewards  # noqa: E402
from omni_backends.launch.ray.engine import buckets  # noqa: E402
from omni_backends.launch.ray.launcher import RayLauncher, check_versions  # noqa: E402
from omni_backends.launch.ray.rewards import ScoringLimits  # noqa: E402
from omni_backends.launch.ray.wire import value  # noqa: E402
from omni_portable.contracts.dataplane import ScoredGroup  # noqa: E402
from omni_portable.contracts.errors import (  # noqa: E402
    ClusterError,
    LifecycleError,
    RewardError,
    WeightSyncError,
    WorkerLostError,
)
from omni_portable.contracts.launcher import Launcher, Role  # noqa: E402
from omni_portable.contracts.media import DistantArtifact  # noqa: E402
from omni_portable.contracts.reward import RewardSample  # noqa: E402
from omni_portable.contracts.rollout import RolloutEngine, StagedUpdates  # noqa: E402
from omni_portable.models.weights import NamedTensorStream, make_stream  # noqa: E402
from omni_portable.reward import policy  # noqa: E402
from omni_portable.reward.revival import RevivedRewards  # noqa: E402
from omni_portable.rollout.codec import pack  # noqa: E402
from omni_portable.rollout.distant import DistantTensor  # noqa: E402
from omni_portable.rollout.router import Router  # noqa: E402
from omni_portable.trainer.stages import reward_samples  # noqa: E402
from omni_portable.trainer.teaching import bare  # noqa: E402
from tests.backends.launch.ray_roles import painted_latents  # noqa: E402
from tests.support.processes import assert_gone  # noqa: E402
from tests.support.requests import make_request  # noqa: E402

pytestmark = pytest.mark.ray
HERE = "tests.backends.launch.ray_roles"
CPU = {"device": {"name": "cpu"}}


def rollout(replica: int = 0, **fields) -> Role:
    fields.setdefault("arguments", {"opened": True})
    return Role("rollout", f"{HERE}:build_replica", CPU, replica, environment={"OMP_NUM_THREADS": "1"}, **fields)


def reward(mark: object = "") -> Role:
    return Role("reward", f"{HERE}:build_counting", CPU, arguments={"mark": str(mark)})


def samples(*prompts: str) -> list[RewardSample]:
    return [RewardSample(f"s{i}", "g", prompt, {}) for i, prompt in enumerate(prompts)]


@pytest.fixture
def launcher(cluster):
    made = RayLauncher(RayOptions(bucket_mib=1))
    yield made
    made.shutdown()
    assert ray.is_initialized(), "it was not this launcher that connected"


def test_a_cluster_that_is_started_here_is_reached_from_this_machine_only(cluster):
    assert cluster.started
    assert len(cluster.listeners) > 5
    for listener in cluster.listeners:
        assert "127.0.0.1" in listener or "::1" in listener, listener
    assert cluster.address.startswith("127.0.0.1:")
    assert os.environ["RAY_AUTH_MODE"] == "token"


def test_an_engine_in_another_process(launcher, tmp_path):
    """One worker for all of it: it takes seconds to start."""
    role = rollout(arguments={"opened": False}, log=tmp_path / "logs" / "rollout-0.log")
    launcher.reserve([role])
    engine = launcher.start(role)
    assert isinstance(launcher, Launcher)
    assert isinstance(engine, RolloutEngine)
    assert isinstance(engine, StagedUpdates)
    with pytest.raises(LifecycleError, match="'rollout-0' cannot be started: it runs already"):
        launcher.start(role)

    async def aborts_and_pauses_reach_it_while_it_draws() -> None:
        drawing = asyncio.create_task(engine.generate([make_request(i) for i in range(4)]))
        while engine.health().in_flight < 4:
            await asyncio.sleep(0.01)
        assert engine.abort(["r1", "r2", "nobody"]).aborted == ("r1", "r2")
        assert set(engine.pause().aborted) == {"r0", "r3"}
        result = await drawing
        assert result.trajectories == []
        assert set(result.aborted) == {"r0", "r1", "r2", "r3"}
        with pytest.raises(LifecycleError, match="is paused and cannot generate") as caught:
            await engine.generate([make_request(9)])
        assert "resume" in caught.value.choices

    async def what_a_pause_overtook_is_not_drawn() -> None:
        engine.resume()
        worker, number = engine._worker, engine._last + 1
        engine._last = number
        engine.pause()
        engine.resume()
        answer, apart = await worker.asked_apart("generate", number, pack([make_request(7)]), ["r7"], 1, extra=1)
        late, names, _ = value(answer, "rollout-0")
        assert (late.aborted, names, worker.bring(apart)) == (("r7",), {}, b"")
        assert engine.health().in_flight == 0

    asyncio.run(aborts_and_pauses_reach_it_while_it_draws())
    asyncio.run(what_a_pause_overtook_is_not_drawn())

    engine.pause()
    good = make_stream("full", [("w", torch.arange(3.0))], None)
    tampered = NamedTensorStream(good.manifest, {"w": torch.zeros(3)})
    with pytest.raises(WeightSyncError, match="the tensor 'w' arrived with checksum"):
        engine.update_weights(tampered, 1)
    with pytest.raises(WeightSyncError, match="no weight update is staged"):
        engine.commit_weights(1)
    ack = engine.update_weights(good, 4)
    assert (ack.operation, ack.policy_version) == ("update_weights", 4)
    assert engine.weights_checksum() == {"w": good.manifest.tensors["w"].checksum}
    assert engine.statistics()["perf/rollout/batches"] == 1
    assert psutil.Process(ready_in(launcher, "rollout-0")).nice() == psutil.Process().nice(), "it waits for nobody"
    log = (tmp_path / "logs" / "rollout-0.log").read_text()
    assert "a line of output" in log
    assert "'rollout-0' is ready in process" in log
    assert [path.name for path in (tmp_path / "logs").iterdir()] == ["rollout-0.log"]


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "hanging"])
def test_a_replica_that_is_lost_loses_nothing_and_comes_back(end, launcher, tmp_path, monkeypatch):
    """Also: the output of a worker that does not see the run directory is fetched from it."""
    if end == signal.SIGSTOP:
        launcher = RayLauncher(RayOptions(bucket_mib=1, answer_timeout_s=10.0))
    monkeypatch.setattr("pathlib.Path.touch", lambda self: None)
    log = tmp_path / "logs" / "rollout-0.log"
    roles = [rollout(arguments={"opened": False}, log=log), rollout(log=log)]
    launcher.reserve(roles[:1])
    router = Router({"rollout-0": launcher.start(roles[0])}, restart=partial(again, launcher, roles[1]), restarts=1)
    pid = ready_in(launcher, "rollout-0")

    async def run() -> None:
        router.pause()
        router.update_weights(make_stream("full", [("w", torch.ones(3))], None), 5)
        router.resume()
        drawing = asyncio.create_task(router.generate([make_request(i) for i in range(6)]))
        while router.health().in_flight < 6 or "rollout-0" not in router.replicas:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.2)
        os.kill(pid, end)
        result = await drawing
        assert [t.request.request_id for t in result.trajectories] == [f"r{i}" for i in range(6)]
        assert {t.policy_version for t in result.trajectories} == {5}
        assert ready_in(launcher, "rollout-0") != pid

    asyncio.run(run())
    router.close()
    launcher.shutdown()
    assert "a line of output" in log.read_text()


def again(launcher, role, label):
    launcher.stop(role)
    return launcher.start(role)


def ready_in(launcher, label) -> int:
    return launcher._workers[label].pid


def test_rewards_in_another_process(launcher, tmp_path):
    role = reward(tmp_path / "mark")
    launcher.reserve([role])
    rewards = RevivedRewards("reward-0", launcher.start(role), lambda: again(launcher, role, "reward-0"), 1)

    async def run() -> None:
        assert (await rewards.score_async(samples("ab", "c"))).total == [2.0, 1.0]
        with pytest.raises(RewardError, match="'words' failed") as caught:
            await rewards.score_async(samples("fail"))
        assert (caught.value.remedy, caught.value.choices) == ("mend it", ("a", "b"))
        with pytest.raises(RuntimeError, match=r"in the process of 'reward-0'(.|\n)*ZeroDivisionError: in the scorer"):
            await rewards.score_async(samples("bug"))
        assert (await rewards.score_async(samples("die", "abcd"))).total == [3.0, 4.0], "by its successor"
        os.unlink(tmp_path / "mark")
        with pytest.raises(WorkerLostError, match="'reward-0' was lost once more than launcher.restarts allows"):
            await rewards.score_async(samples("die"))

    asyncio.run(run())


def test_a_worker_that_answers_nothing_is_ended_and_its_successor_scores(launcher, tmp_path, monkeypatch):
    monkeypatch.setattr("omni_backends.launch.ray.rewards.LONGEST_PAUSE_S", 0.0)
    role = Role("reward", f"{HERE}:build_stuck", CPU, arguments={"mark": str(tmp_path / "mark")})
    launcher.reserve([role])
    first = launcher.start(role)
    pid = ready_in(launcher, "reward-0")
    first._limits = ScoringLimits(timeout_s=0.5, retries=0, answer_timeout_s=1.0)
    rewards = RevivedRewards("reward-0", first, lambda: again(launcher, role, "reward-0"), 1)
    assert asyncio.run(rewards.score_async(samples("ab", "c"))).total == [2.0, 1.0]
    assert ready_in(launcher, "reward-0") != pid
    assert_gone([pid])


def test_a_worker_has_the_time_of_all_attempts_for_the_whole_and_for_each_group():
    assert rewards.LONGEST_PAUSE_S == policy.LONGEST_PAUSE_S
    assert ScoringLimits(timeout_s=120.0, retries=0, answer_timeout_s=600.0).seconds({"g"}) == 600 + 2 * 150
    assert ScoringLimits(timeout_s=10.0, retries=2, answer_timeout_s=1.0).seconds({"g", "h"}) == 1 + 3 * 3 * 40


def test_media_go_from_rollout_to_rewards_without_the_trainer(launcher, monkeypatch):
    """Labels and texts are here; pixels come only where somebody looks, also once the process that drew is gone."""
    roles = [Role("rollout", f"{HERE}:build_painter", CPU), Role("reward", f"{HERE}:build_looking", CPU)]
    launcher.reserve(roles)
    engine, rewards = (launcher.start(role) for role in roles)
    passed = []
    monkeypatch.setattr(
        "omni_backends.launch.ray.engine.value",
        lambda blob, label, sources: passed.append(blob) or value(blob, label, sources),
    )
    monkeypatch.setattr("omni_backends.launch.ray.rewards.pack", lambda sent: passed.append(pack(sent)) or passed[-1])
    fetched = []
    monkeypatch.setattr(engine._worker, "bring", lambda reference: fetched.append(reference) or ray.get(reference))

    async def run() -> None:
        drawn = (await engine.generate([make_request(i) for i in (3, 5)])).trajectories
        (first, second) = (trajectory.artifacts for trajectory in drawn)
        assert isinstance(first["image"], DistantArtifact)
        assert (first["image"].modality, first["image"].layout) == ("image", "CHW")
        assert first["response"].data == "as bright as 3"
        scored = await rewards.score_async(reward_samples(drawn))
        assert scored.total == [3.0, 5.0]
        assert scored.details == [{"said": "as bright as 3"}, {"said": "as bright as 5"}]
        assert fetched == []
        latents = sum(one.latents.nbytes for one in drawn)
        assert sum(len(blob) for blob in passed) - latents < 2 * 3 * 160 * 160 / 5, "what passed through this process"
        os.kill(ready_in(launcher, "rollout-0"), signal.SIGKILL)
        assert torch.equal(second["image"].data, torch.full((3, 160, 160), 5, dtype=torch.uint8))
        assert len(fetched) == 1
        assert (await rewards.score_async(reward_samples(drawn))).total == [3.0, 5.0], "they outlive the process"

    asyncio.run(run())


def test_tensors_go_from_rollout_to_a_queue_without_the_trainer(launcher, queue, monkeypatch):
    """With ranks of training in the cluster. The queue has them also once the process that drew is gone, and whoever
    takes a group has them until it lets go of it."""
    painter = Role("rollout", f"{HERE}:build_painter", CPU)
    launcher.reserve([painter, Role("actor", "nobody:starts", CPU, ranks=2)])
    engine = launcher.start(painter)
    passed, fetched = [], []
    monkeypatch.setattr(
        "omni_backends.launch.ray.engine.value",
        lambda blob, label, sources: passed.append(blob) or value(blob, label, sources),
    )
    monkeypatch.setattr(engine._worker, "bring", lambda reference: fetched.append(reference) or ray.get(reference))
    drawn = asyncio.run(engine.generate([make_request(i) for i in (3, 5)])).trajectories
    large = painted_latents(3).nbytes
    assert isinstance(drawn[0].latents, DistantTensor)
    assert len(passed[0]) < 8192 < large
    queue.put(ScoredGroup("painted", 0, [replace(one, artifacts={}) for one in drawn], [0.0, 1.0]))
    (tag,) = queue._rows.tags().values()
    assert tag["bytes"] > 2 * large, "they count, wherever they are"
    assert tag["here"] < 8192
    assert fetched == []
    os.kill(ready_in(launcher, "rollout-0"), signal.SIGKILL)
    del drawn
    (group,) = queue.take(["painted"])
    assert ray.get([keeper.keys.remote() for keeper in queue._service.keepers]) == [[]]
    for trajectory, brightness in zip(group.trajectories, (3, 5), strict=True):
        assert isinstance(trajectory.latents, DistantTensor)
        assert torch.equal(trajectory.latents, painted_latents(brightness))
    assert fetched == []


def test_tensors_go_to_a_teacher_and_what_it_says_to_a_queue_without_the_trainer(launcher, queue, monkeypatch):
    """With ranks of training in the cluster; also once the processes that drew and taught are gone."""
    painter, teacher = Role("rollout", f"{HERE}:build_painter", CPU), Role("teacher", f"{HERE}:build_knowing", CPU)
    launcher.reserve([painter, teacher, Role("actor", "nobody:starts", CPU, ranks=2)])
    engine, asked = launcher.start(painter), launcher.start(teacher)
    passed, fetched = [], []
    for where in ("engine", "teachers"):
        monkeypatch.setattr(
            f"omni_backends.launch.ray.{where}.value",
            lambda blob, label, sources: passed.append(blob) or value(blob, label, sources),
        )
    monkeypatch.setattr(
        "omni_backends.launch.ray.teachers.pack",
        lambda sent, bundles: passed.append(pack(sent, bundles)) or passed[-1],
    )
    for worker in (engine._worker, asked._worker):
        monkeypatch.setattr(worker, "bring", lambda reference: fetched.append(reference) or ray.get(reference))

    async def drawn_and_taught():
        drawn = [bare(one) for one in (await engine.generate([make_request(i) for i in (3, 5)])).trajectories]
        os.kill(ready_in(launcher, "rollout-0"), signal.SIGKILL)
        outputs = await asked.teach_async(drawn)
        return [replace(one, teacher=output) for one, output in zip(drawn, outputs, strict=True)]

    taught = asyncio.run(drawn_and_taught())
    os.kill(ready_in(launcher, "teacher-0"), signal.SIGKILL)
    assert isinstance(taught[1].teacher.velocity, DistantTensor)
    assert torch.equal(taught[1].teacher.log_prob, torch.full((32,), 5.0))
    queue.put(ScoredGroup("taught", 0, taught, [0.0, 1.0]))
    del taught
    assert fetched == []
    assert sum(map(len, passed)) < 24576 < painted_latents(3).nbytes
    (group,) = queue.take(["taught"])
    for trajectory, brightness in zip(group.trajectories, (3, 5), strict=True):
        assert torch.equal(trajectory.teacher.velocity, 2 * painted_latents(brightness))
    assert fetched == []


def test_what_is_not_to_wait_in_the_object_store_travels_with_answers(cluster):
    launcher = RayLauncher(RayOptions(objects_from_kib=0))
    painter, teacher = Role("rollout", f"{HERE}:build_painter", CPU), Role("teacher", f"{HERE}:build_knowing", CPU)
    try:
        launcher.reserve([painter, teacher, Role("actor", "nobody:starts", CPU, ranks=2)])
        engine, asked = launcher.start(painter), launcher.start(teacher)
        (drawn,) = asyncio.run(engine.generate([make_request(3)])).trajectories
        assert type(drawn.latents) is torch.Tensor
        assert not isinstance(drawn.artifacts["image"], DistantArtifact)
        (output,) = asyncio.run(asked.teach_async([bare(drawn)]))
        assert type(output.velocity) is torch.Tensor
        assert torch.equal(output.velocity, 2 * painted_latents(3))
    finally:
        launcher.shutdown()


def test_pools_that_are_larger_than_the_cluster_say_what_is_missing(cluster):
    launcher = RayLauncher(RayOptions(rollout_cpus=10))
    with pytest.raises(ClusterError, match=r"missing are \d+ CPU \(of 41\).*rollout: 4 x 10 CPU; reward: 1 x 1 CPU"):
        launcher.reserve([*(rollout(replica) for replica in range(4)), reward()])
    launcher.shutdown()


def test_a_role_that_was_not_reserved_is_refused(launcher):
    launcher.reserve([reward()])
    with pytest.raises(LifecycleError, match="'rollout-0' was not reserved"):
        launcher.start(rollout())


def test_other_versions_are_refused():
    here = {"omni-portable": "2", "torch": "2.13.0"}
    check_versions("rollout-0", here, here)
    with pytest.raises(ClusterError, match="omni-portable 1 there and 2 here"):
        check_versions("rollout-0", here | {"omni-portable": "1"}, here)


def test_weights_travel_in_bounded_pieces():
    tensors = [("a", torch.zeros(10)), ("b", torch.zeros(10)), ("c", torch.zeros(100)), ("d", torch.zeros(1))]
    assert [list(bucket) for bucket in buckets(tensors, 80)] == [["a", "b"], ["c"], ["d"]]
