"""Devices of the actor that are lent to rollout and taken back: the order of events, and everything that may fail."""

from __future__ import annotations

import asyncio
import itertools
import logging
import threading
from collections.abc import Iterable
from typing import Any

import pytest
import torch

from omni_portable.contracts.errors import LifecycleError, WeightSyncError, WorkerLostError
from omni_portable.contracts.lifecycle import Ack
from omni_portable.rollout.router import Router
from omni_portable.trainer.modes.guest import NEXT, Guest, Place
from omni_portable.trainer.modes.lending import LEND, LENT, RECLAIM, Lending, Terms
from omni_portable.trainer.modes.slots import Slots
from omni_portable.trainer.modes.stock import Stock
from omni_portable.trainer.rollout_stage import RolloutStage
from omni_portable.trainer.timing import StageClock
from tests.rollout.router_fakes import Replica, stream
from tests.support.requests import make_request


class Lent(Replica):
    """A replica that notes its aborts, whose update may be held up, and whose sleep may fail."""

    def __init__(self, label: str) -> None:
        super().__init__(label)
        self.go_on = threading.Event()
        self.go_on.set()
        self.updating = threading.Event()

    def abort(self, request_ids: Iterable[str] | None = None) -> Ack:
        ack = super().abort(request_ids)
        self.calls.append("abort")
        return ack

    def update_weights(self, given: Any, version: int) -> Ack:
        self.updating.set()
        assert self.go_on.wait(30)
        return super().update_weights(given, version)

    def sleep(self, level: int = 1) -> Ack:
        if self.refuse == "sleep":
            raise LifecycleError("12 MiB stayed on the device")
        return super().sleep(level)


class Sleeper:
    """An actor that notes what of it sleeps."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def sleep(self, level: int, tags: Any) -> Ack:
        self.calls.append(("sleep", level, tags))
        return Ack("sleep")

    def wake(self, tags: Any) -> Ack:
        self.calls.append(("wake", tags))
        return Ack("wake")


class Bench:
    """One replica and one lent engine; a round is 4 pieces of 2 requests."""

    def __init__(self, level: int = 1, **terms: Any) -> None:
        self.own, self.lent = Replica("rollout-0"), Lent("lent-0")
        self.router = Router({"rollout-0": self.own}, keep=True)
        self.guest = Guest("lent-0", self.lent, level)
        self.actor, self.slots, self.stock, self.clock = Sleeper(), Slots(1), Stock(8), StageClock()
        self.lending = Lending(
            [self.guest],
            self.router,
            self.actor,  # type: ignore[arg-type]
            self.slots,
            self.stock,
            self.clock,
            Terms(**terms),
        )
        self.stage = RolloutStage(self.router, piece_size=2, slots=self.slots)
        self.drawn: list[str] = []
        self.version = 0

    async def start(self) -> None:
        self.router.pause()
        self.publish()
        await self.lending.start()
        assert self.lent.calls == (["pause", "sleep"] if self.guest.level else ["pause"])
        self.lent.calls.clear()

    def publish(self) -> None:
        """The next version for whoever is in the router, which runs then."""
        self.version += 1
        self.router.update_weights(stream(float(self.version)), self.version)
        self.router.resume()

    async def round(self, step: int) -> int:
        async def piece(part: Any) -> None:
            self.drawn += [t.request.request_id for t in await self.stage.draw(part)]
            self.stock.add(step, len(part))

        requests = [make_request(i, request_id=f"{step}/{i}") for i in range(8)]
        await asyncio.gather(*(piece(part) for part in self.stage.pieces(requests)))
        return 4

    def begin(self, step: int) -> asyncio.Task[int]:
        """The round is on its way, and its step is due."""
        return asyncio.create_task(self.lending.during(step, asyncio.create_task(self.round(step))))

    def complete(self, step: int) -> None:
        assert sorted(self.drawn) == [f"{step}/{i}" for i in range(8)], "nothing is lost, nothing is drawn twice"


async def until(condition: Any) -> None:
    for _ in range(2000):
        if condition():
            return
        await asyncio.sleep(0.001)
    raise AssertionError("it never came")


def pieces(replica: Replica) -> list[list[str]]:
    return [call for call in replica.calls if isinstance(call, list)]


def test_devices_are_lent_while_a_step_waits_and_taken_back_when_its_round_is_complete() -> None:
    async def run() -> None:
        bench = Bench(actor_sleeps=("optimizer",))
        await bench.start()
        due = bench.begin(1)
        await until(lambda: pieces(bench.lent))
        assert bench.lent.calls == ["wake", "update_weights", "resume", ["1/2", "1/3"]]
        assert torch.equal(bench.lent.tensors["w"], torch.full((3,), 1.0)), "the weights that rollout holds"
        assert bench.router.replicas == ("rollout-0", "lent-0")
        assert bench.actor.calls == [("sleep", 1, ("optimizer",))]
        bench.own.open.set()
        bench.lent.open.set()
        assert await due == 4
        bench.complete(1)
        assert [c for c in bench.lent.calls if isinstance(c, str)][3:] == ["abort", "pause", "sleep"]
        assert bench.router.replicas == ("rollout-0",)
        assert bench.actor.calls[1:] == [("wake", ("optimizer",))]
        figures = bench.lending.statistics()
        assert figures["hybrid/lends"] == 1
        assert figures["hybrid/requests"] == 2 * len(pieces(bench.lent))
        assert bench.lending.statistics() == dict.fromkeys(figures, 0.0)
        seconds = bench.clock.take()
        assert {LEND, LENT, RECLAIM} == {span.stage for span in bench.clock.spans}
        assert all(f"timing_s/{stage}" in seconds for stage in (LEND, LENT, RECLAIM))

    asyncio.run(run())


def test_nothing_is_lent_for_a_round_that_is_ready_enough() -> None:
    async def run() -> None:
        bench = Bench(lend_below=0.5)
        await bench.start()
        bench.stock.add(1, 4)
        due = bench.begin(1)
        bench.own.open.set()
        await due
        assert bench.lent.calls == []
        assert bench.lending.statistics()["hybrid/lends"] == 0

    asyncio.run(run())


def test_devices_are_taken_back_at_the_threshold_and_the_others_finish_what_was_begun() -> None:
    async def run() -> None:
        bench = Bench(lend_below=0.5, reclaim_at=0.5)
        await bench.start()
        due = bench.begin(1)
        await until(lambda: pieces(bench.lent))
        bench.own.open.set()  # the lent one never finishes its piece
        await due
        bench.complete(1)
        assert bench.guest.place is Place.HOME
        assert pieces(bench.own)[-1] == ["1/2", "1/3"]
        assert bench.lent.calls[-3:] == ["abort", "pause", "sleep"]
        assert bench.slots.limit == 1

    asyncio.run(run())


@pytest.mark.parametrize(("level", "again"), [(0, ["resume"]), (1, ["wake", "resume"])])
def test_weights_travel_to_a_lent_replica_only_where_it_has_others(level: int, again: list[str]) -> None:
    async def run() -> None:
        bench = Bench(level=level)
        await bench.start()
        calls = []
        for step, publish in ((1, False), (2, True), (3, False)):
            bench.own.open.clear()
            bench.lent.open.clear()
            due = bench.begin(step)
            await until(lambda: pieces(bench.lent))
            bench.own.open.set()
            bench.lent.open.set()
            await due
            calls.append([c for c in bench.lent.calls if isinstance(c, str)])
            bench.lent.calls.clear()
            if publish:
                bench.router.pause()
                bench.publish()
        with_update = [*again[:-1], "update_weights", "resume"]
        taken_back = ["abort", "pause", *(["sleep"] if level else [])]
        assert calls == [with_update + taken_back, again + taken_back, with_update + taken_back]
        assert bench.lent.health().policy_version == 2

    asyncio.run(run())


def test_a_lent_replica_that_dies_loses_nothing_and_stays_out(caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        bench = Bench()
        await bench.start()
        due = bench.begin(1)
        await until(lambda: pieces(bench.lent))
        bench.lent.die()
        await until(lambda: bench.router.replicas == ("rollout-0",))
        bench.own.open.set()
        await due
        bench.complete(1)
        assert bench.guest.place is Place.OUT
        figures = bench.lending.statistics()
        assert (figures["hybrid/lost"], figures["hybrid/out"]) == (1, 1)
        bench.drawn.clear()
        await bench.begin(2)
        bench.complete(2)
        assert bench.lending.statistics()["hybrid/lends"] == 0

    with caplog.at_level(logging.WARNING):
        asyncio.run(run())
    assert "'lent-0'" in caplog.text
    assert "stays out of rollout for the rest of this run" in caplog.text


@pytest.mark.parametrize(("refuse", "words"), [("apply", "applying failed at 'w'"), ("version", "policy version 0")])
def test_a_lent_replica_whose_update_fails_never_joins_and_the_run_says_so(
    refuse: str, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def run() -> None:
        bench = Bench()
        await bench.start()
        bench.lent.refuse = refuse
        due = bench.begin(1)
        bench.own.open.set()
        await due
        bench.complete(1)
        assert not pieces(bench.lent)
        assert bench.lent.lifecycle.state.value == "asleep", "the devices are the actor's again"
        figures = bench.lending.statistics()
        assert (figures["hybrid/lends"], figures["hybrid/failed_updates"], figures["hybrid/out"]) == (0, 1, 1)

    with caplog.at_level(logging.WARNING):
        asyncio.run(run())
    assert "'lent-0'" in caplog.text
    assert words in caplog.text


def test_a_round_that_completes_while_the_lent_replica_is_updated_waits_for_it_and_sends_it_home() -> None:
    async def run() -> None:
        bench = Bench()
        await bench.start()
        bench.lent.go_on.clear()
        due = bench.begin(1)
        await until(bench.lent.updating.is_set)
        bench.own.open.set()
        await until(lambda: len(bench.drawn) == 8)
        assert not due.done(), "the devices are still the replica's"
        bench.lent.go_on.set()
        await due
        assert bench.lent.calls == ["wake", "update_weights", "resume", "pause", "sleep"]
        assert bench.guest.place is Place.HOME
        assert bench.lending.statistics()["hybrid/lends"] == 0

    asyncio.run(run())


def test_devices_that_are_not_given_back_end_the_run() -> None:
    async def run() -> None:
        bench = Bench()
        await bench.start()
        due = bench.begin(1)
        await until(lambda: pieces(bench.lent))
        bench.lent.refuse = "sleep"
        bench.own.open.set()
        bench.lent.open.set()
        with pytest.raises(LifecycleError, match="'lent-0' does not give the actor's devices back: 12 MiB stayed"):
            await due

    asyncio.run(run())


def test_an_error_of_the_round_comes_through() -> None:
    async def run() -> None:
        bench = Bench()
        await bench.start()

        async def broken() -> int:
            await until(lambda: bench.guest.place is Place.LENT)
            raise WorkerLostError("no reader")

        with pytest.raises(WorkerLostError, match="no reader"):
            await bench.lending.during(1, asyncio.create_task(broken()))
        assert bench.guest.place is Place.HOME

    asyncio.run(run())


def test_a_replica_of_another_version_is_not_admitted() -> None:
    bench = Bench()
    bench.router.pause()
    bench.publish()
    with pytest.raises(WeightSyncError, match="'lent-0' holds policy version 0, not 1"):
        bench.router.admit("lent-0", bench.lent)


def test_a_lent_replica_may_leave_even_as_the_last_one() -> None:
    bench = Bench()
    bench.router.admit("lent-0", bench.lent)
    bench.own.die()
    bench.router.statistics()
    assert bench.router.replicas == ("lent-0",)
    assert bench.router.leave("lent-0") is bench.lent


@pytest.mark.parametrize(
    ("start", "to"), [pair for pair in itertools.product(Place, Place) if pair[1] not in NEXT[pair[0]]]
)
def test_only_the_moves_of_the_table_are_possible(start: Place, to: Place) -> None:
    guest = Guest("lent-0", Lent("lent-0"), 1)
    guest.place = start
    with pytest.raises(LifecycleError, match=f"is {start.value} and cannot become {to.value}"):
        guest.move(to)


def test_slots_are_handed_out_in_order_and_follow_their_bound() -> None:
    async def run() -> None:
        slots, inside, leave = Slots(1), [], [asyncio.Event() for _ in range(4)]

        async def one(number: int) -> None:
            async with slots.one():
                inside.append(number)
                await leave[number].wait()

        tasks = [asyncio.create_task(one(number)) for number in range(4)]
        await asyncio.sleep(0.01)
        assert inside == [0]
        slots.resize(2)
        await asyncio.sleep(0.01)
        assert inside == [0, 1]
        slots.resize(1)
        leave[0].set()
        await asyncio.sleep(0.01)
        assert inside == [0, 1], "one is still out"
        tasks[2].cancel()
        leave[1].set()
        await asyncio.sleep(0.01)
        assert inside == [0, 1, 3], "who was cancelled takes no slot"
        leave[3].set()
        await asyncio.gather(*tasks, return_exceptions=True)

    asyncio.run(run())
