"""A router over replicas: who draws what, lifecycle calls that all must acknowledge, and replicas that die."""

from __future__ import annotations

import asyncio
import dataclasses

import pytest

from omni_portable.contracts.errors import LifecycleError, WeightSyncError, WorkerLostError
from omni_portable.contracts.rollout import RolloutEngine
from omni_portable.rollout.fanout import joined_statistics
from omni_portable.rollout.router import Router
from omni_portable.rollout.seats import Seat, choose
from tests.rollout.router_fakes import Replica, stream
from tests.support.requests import make_request
from tests.support.token_models import token_request
from tests.support.toy_tokens import ToyEngine


def requests(count: int, start: int = 0):
    return [make_request(index) for index in range(start, start + count)]


async def settle() -> None:
    for _ in range(30):
        await asyncio.sleep(0)


def crew(count: int = 2, opened: bool = False, **settings):
    replicas = {f"rollout-{i}": Replica(f"rollout-{i}") for i in range(count)}
    for replica in replicas.values():
        if opened:
            replica.open.set()
    return Router(replicas, piece_size=4, **settings), list(replicas.values())


def drawn(replica: Replica):
    return [call for call in replica.calls if isinstance(call, list)]


def test_it_is_a_rollout_engine():
    assert isinstance(crew()[0], RolloutEngine)


def test_pieces_go_to_free_replicas_and_come_back_in_request_order():
    async def run() -> None:
        router, (first, second) = crew()
        drawing = asyncio.create_task(router.generate(requests(12)))
        await settle()
        assert [len(drawn(r)) for r in (first, second)] == [1, 1], "one piece each, the third waits"
        second.open.set()
        await settle()
        assert drawn(second) == [["r4", "r5", "r6", "r7"], ["r8", "r9", "r10", "r11"]], "whoever is free goes on"
        first.open.set()
        result = await drawing
        assert [t.request.request_id for t in result.trajectories] == [f"r{i}" for i in range(12)]
        assert result.aborted == ()

    asyncio.run(run())


def test_a_single_replica_gets_everything_at_once():
    async def run() -> None:
        router, (only,) = crew(1, opened=True)
        await router.generate(requests(9))
        assert [len(piece) for piece in drawn(only)] == [9]

    asyncio.run(run())


def test_a_prompt_goes_where_it_was_before_unless_that_one_has_more_to_do():
    first, second = Seat("a", Replica("a")), Seat("b", Replica("b"))
    with first.serving(["p1"]):
        pass
    assert choose([first, second], ["p1"], 1) is first
    assert choose([first, second], ["p2"], 1) is second, "the one that served fewer"
    with first.serving(["p9"] * 5):
        assert choose([first, second], ["p1"], 1) is second, "full"
        assert choose([first, second], ["p1"], 2) is second, "it has more than a piece more to do"
        with second.serving(["p8"] * 5):
            assert choose([first, second], ["p1"], 2) is first
            assert choose([first, second], ["p1"], 1) is None


def test_requests_of_a_dead_replica_are_drawn_by_another_once():
    async def run() -> None:
        router, (first, second) = crew()
        drawing = asyncio.create_task(router.generate(requests(8)))
        await settle()
        first.die()
        await settle()
        second.open.set()
        result = await drawing
        assert sorted(t.request.request_id for t in result.trajectories) == sorted(f"r{i}" for i in range(8))
        assert router.replicas == ("rollout-1",)
        assert router.statistics()["perf/rollout/resubmitted"] == 4

    asyncio.run(run())


def test_requests_are_given_up_after_their_attempts():
    async def run() -> None:
        router, replicas = crew(3, attempts=2)
        drawing = asyncio.create_task(router.generate(requests(4)))
        for _ in range(2):
            await settle()
            next(r for r in replicas if drawn(r) and not r.dead.is_set()).die()
        with pytest.raises(WorkerLostError, match=r"4 rollout requests \(the first: 'r0'\) lost their replica 2 times"):
            await drawing

    asyncio.run(run())


def test_pause_aborts_what_is_out_and_what_waits():
    async def run() -> None:
        router, replicas = crew()
        drawing = asyncio.create_task(router.generate(requests(12)))
        await settle()
        ack = router.pause()
        assert len(ack.aborted) == 12
        result = await drawing
        assert result.trajectories == []
        assert result.aborted == tuple(f"r{i}" for i in range(12))
        with pytest.raises(LifecycleError, match="paused and cannot generate"):
            await router.generate(requests(1))
        router.resume()
        for replica in replicas:
            replica.open.set()
        assert len((await router.generate(requests(12))).trajectories) == 12

    asyncio.run(run())


def test_only_the_named_requests_are_aborted():
    async def run() -> None:
        router, replicas = crew()
        drawing = asyncio.create_task(router.generate(requests(8)))
        await settle()
        assert router.abort(["r1", "r5", "nobody"]).aborted == ("r1", "r5")
        for replica in replicas:
            replica.open.set()
        result = await drawing
        assert [t.request.request_id for t in result.trajectories] == ["r0", "r2", "r3", "r4", "r6", "r7"]
        assert result.aborted == ("r1", "r5")

    asyncio.run(run())


def test_what_a_leaving_replica_drew_is_drawn_by_the_others():
    async def run() -> None:
        router, (first, second) = crew()
        drawing = asyncio.create_task(router.generate(requests(8)))
        await settle()
        assert router.leave("rollout-0") is first
        second.open.set()
        result = await drawing
        assert len(result.trajectories) == 8
        assert result.aborted == ()
        with pytest.raises(LifecycleError, match="it is the last"):
            router.leave("rollout-1")
        router.join("rollout-0", Replica("rollout-0"))
        with pytest.raises(LifecycleError, match="'rollout-0' already"):
            router.join("rollout-0", Replica("rollout-0"))

    asyncio.run(run())


def test_one_replica_that_refuses_an_update_keeps_all_at_the_old_version():
    router, (first, second) = crew()
    router.pause()
    second.refuse = "stage"
    with pytest.raises(WeightSyncError, match="rollout replica 'rollout-1': the tensor 'w' arrived with checksum"):
        router.update_weights(stream(1.0), 1)
    assert [r.lifecycle.policy_version for r in (first, second)] == [0, 0]
    assert [r.lifecycle.state.value for r in (first, second)] == ["paused", "paused"]
    assert "discard" in first.calls
    second.refuse = ""
    assert router.update_weights(stream(1.0), 1).policy_version == 1, "and it may be tried again"


@pytest.mark.parametrize(
    ("refuse", "words"), [("apply", "'rollout-1': applying failed"), ("version", "'rollout-1' holds policy version 1")]
)
def test_a_replica_that_does_not_arrive_at_the_version_is_named(refuse, words):
    router, (_, second) = crew()
    router.pause()
    second.refuse = refuse
    with pytest.raises(WeightSyncError, match=words):
        router.update_weights(stream(1.0), 2)


def test_replicas_that_hold_different_weights_are_named():
    router, (_, second) = crew()
    assert set(router.weights_checksum()) == {"w"}
    second.tensors["w"] += 1
    with pytest.raises(WeightSyncError, match="'rollout-0' and 'rollout-1' hold different weights: 'w'"):
        router.weights_checksum()


def test_an_illegal_call_names_the_replica_and_what_is_legal():
    router, _ = crew()
    with pytest.raises(LifecycleError, match="rollout replica 'rollout-0'.*cannot sleep") as caught:
        router.sleep(1)
    assert "pause" in caught.value.choices


def test_figures_add_up_and_means_are_weighted():
    parts = [
        {"perf/rollout/batches": 1.0, "b/mean": 2.0, "b/min": 2.0, "b/max": 2.0, "s": 1.0},
        {"perf/rollout/batches": 3.0, "b/mean": 6.0, "b/min": 5.0, "b/max": 8.0, "s": 2.5},
        {"perf/rollout/batches": 0.0},
    ]
    joined = joined_statistics(parts)
    assert joined == {"perf/rollout/batches": 4.0, "b/mean": 5.0, "b/min": 2.0, "b/max": 8.0, "s": 3.5}


def test_restarts_count_engines_that_start_their_own_processes_again():
    router, (first, _) = crew()
    first.statistics = lambda: {"perf/rollout/batches": 1.0, "perf/rollout/restarts": 1.0}
    assert router.statistics()["perf/rollout/restarts"] == 1
    first.statistics = lambda: {"perf/rollout/batches": 1.0, "perf/rollout/restarts": 0.0}
    assert router.statistics()["perf/rollout/restarts"] == 1, "since the run began, as of replicas"


@pytest.mark.parametrize(
    ("operation", "before"),
    [("abort", ()), ("pause", ()), ("resume", ("pause",)), ("sleep", ("pause",)), ("wake", ("pause", "sleep"))],
)
@pytest.mark.parametrize("answer", ["not ok", "another operation", "another version"])
def test_every_replica_must_acknowledge_every_lifecycle_call(operation, before, answer, monkeypatch):
    router, (_, second) = crew()
    for step in before:
        getattr(router, step)()
    real = getattr(second, operation)

    def odd(*arguments):
        ack = real(*arguments)
        changes = {
            "not ok": {"ok": False, "detail": "it would not"},
            "another operation": {"operation": "stretch"},
            "another version": {"policy_version": 9},
        }
        return dataclasses.replace(ack, **changes[answer])

    monkeypatch.setattr(second, operation, odd)
    with pytest.raises((LifecycleError, WeightSyncError), match="replica 'rollout-1'"):
        getattr(router, operation)()


def test_an_update_that_one_replica_could_not_apply_reaches_all_when_it_is_sent_again():
    """Under a further version: the others hold the last one already."""
    router, (first, second) = crew()
    router.pause()
    second.refuse = "apply"
    with pytest.raises(WeightSyncError, match="'rollout-1': applying failed at 'w'"):
        router.update_weights(stream(1.0), 1)
    assert [r.lifecycle.state.value for r in (first, second)] == ["paused", "paused"]
    second.refuse = ""
    assert router.update_weights(stream(1.0), 2).policy_version == 2
    assert [r.lifecycle.policy_version for r in (first, second)] == [2, 2]
    router.resume()
    assert router.weights_checksum() == {"w": stream(1.0).manifest.tensors["w"].checksum}


def test_a_response_that_a_leaving_replica_began_is_finished_by_the_others():
    """With the tokens that it had; nothing is drawn twice."""

    async def run() -> None:
        asked = [token_request(i, max_new_tokens=12) for i in range(4)]
        alone = ToyEngine(max_num_seqs=4)
        whole = (await alone.generate(asked)).trajectories
        engines = {f"rollout-{i}": ToyEngine(max_num_seqs=4) for i in range(2)}
        router = Router(engines, piece_size=2)
        drawing = asyncio.create_task(router.generate(asked))
        for _ in range(8):
            await asyncio.sleep(0)
        router.leave("rollout-0")
        found = (await drawing).trajectories
        assert [t.response_ids.tolist() for t in found] == [t.response_ids.tolist() for t in whole]
        assert all(t.policy_versions is None for t in found)
        drawn = sum(engine.statistics().get("perf/rollout/tokens", 0.0) for engine in engines.values())
        assert drawn == sum(t.length for t in whole), "the tokens of the one that left are kept"

    asyncio.run(run())
