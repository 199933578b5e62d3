"""Replicas that are lost, and those that are made in their place."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from omni_portable.contracts.errors import WorkerLostError
from omni_portable.rollout.router import Router
from tests.rollout.router_fakes import Replica, stream
from tests.rollout.test_router import crew, requests, settle


def test_without_replicas_and_restarts_the_run_stops():
    async def run() -> None:
        router, (only,) = crew(1, attempts=5)
        drawing = asyncio.create_task(router.generate(requests(2)))
        await settle()
        only.die()
        with pytest.raises(WorkerLostError, match="no rollout replica is left: the process of 'rollout-0' is gone"):
            await drawing

    asyncio.run(run())


def test_a_lost_replica_comes_back_at_the_present_version_and_draws():
    async def run() -> None:
        made, may_finish = [], threading.Event()

        def restart(name: str) -> Replica:
            may_finish.wait()
            made.append(Replica(name))
            made[-1].open.set()
            return made[-1]

        router, (only,) = crew(1, restart=restart, restarts=1)
        router.pause()
        router.update_weights(stream(5.0), 3)
        router.resume()
        drawing = asyncio.create_task(router.generate(requests(4)))
        await settle()
        only.die()
        await settle()
        assert router.replicas == ()
        may_finish.set()
        result = await drawing
        assert [t.policy_version for t in result.trajectories] == [3] * 4
        assert made[0].weights_checksum() == {"w": stream(5.0).manifest.tensors["w"].checksum}
        assert router.statistics()["perf/rollout/restarts"] == 1
        router.close()

    asyncio.run(run())


def test_a_successor_that_comes_after_the_run_was_stopped_tells_nobody(caplog: pytest.LogCaptureFixture):
    may_finish = threading.Event()

    def restart(name: str) -> Replica:
        may_finish.wait()
        return Replica(name)

    routers: list[Router] = []

    async def run() -> None:
        router, (only,) = crew(1, restart=restart, restarts=1)
        routers.append(router)
        drawing = asyncio.create_task(router.generate(requests(2)))
        await settle()
        only.die()
        await settle()
        drawing.cancel()
        await asyncio.wait([drawing])

    asyncio.run(run())
    may_finish.set()
    routers[0].close()
    assert [record.getMessage() for record in caplog.records if record.name == "concurrent.futures"] == []


@pytest.mark.parametrize("operation", ["pause", "update", "sleep"])
def test_a_lifecycle_call_that_meets_a_dead_replica_is_carried_out_by_its_successor(operation):
    async def run() -> None:
        made: list[Replica] = []
        router, (only,) = crew(1, restart=lambda name: made.append(Replica(name)) or made[-1], restarts=1)
        if operation != "pause":
            router.pause()
        only.die()
        if operation == "pause":
            assert router.pause().operation == "pause"
        elif operation == "sleep":
            assert router.sleep(1).operation == "sleep"
        else:
            assert router.update_weights(stream(2.0), 7).policy_version == 7
            assert made[0].tensors["w"][0] == 2
        state = {"pause": "paused", "update": "paused", "sleep": "asleep"}[operation]
        assert made[0].lifecycle.state.value == state
        router.close()

    asyncio.run(run())


def test_a_successor_that_comes_while_the_others_sleep_sleeps_too():
    router, _ = crew()
    router.pause()
    router.sleep(1)
    late = Replica("late")
    router.join("late", late)
    assert late.calls == ["pause", "sleep"]
    router.wake()
    router.update_weights(stream(1.0), 1)
    router.resume()
    assert late.health().policy_version == 1


def test_whoever_is_being_made_anew_is_waited_for_before_all_count_as_asleep():
    """What comes after may take their memory."""
    made: list[Replica] = []

    def restart(name: str) -> Replica:
        time.sleep(0.2)
        made.append(Replica(name))
        return made[-1]

    router, (first, second) = crew(2, restart=restart, restarts=2)
    router.pause()
    router.update_weights(stream(2.0), 5)
    second.die()
    assert router.sleep(1).operation == "sleep"
    assert [replica.health().state.value for replica in (first, *made)] == ["asleep", "asleep"]
    assert made[0].calls == ["pause", "update_weights", "sleep"]
    assert router.replicas == ("rollout-0", "rollout-1")
    router.close()
