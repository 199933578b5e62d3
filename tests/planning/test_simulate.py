"""The simulator: against the closed form, against the asyncio code that really runs, and on its own bookkeeping."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Sequence

import pytest

from omni_portable.contracts.errors import ConfigError
from omni_portable.planning.placement.model import Costs, predict
from omni_portable.planning.placement.profile import Placement, Profile, Row
from omni_portable.planning.simulate.clock import VirtualLoop, run_virtual
from omni_portable.planning.simulate.run import Outcome, simulate
from omni_portable.planning.simulate.seating import IdleSeating, RouterSeating
from omni_portable.planning.simulate.times import make_ratio, measured_ratios
from omni_portable.planning.simulate.workload import EXAMPLE, check_size, make_workload
from tests.planning.toy_run import ToyRun, toy_work

COSTS = Costs(16.0, 0.0, 16.0, 0.0, reward=0.1, sync=1.0, switch=2.0)


def profile(interrupted: str = "continue") -> Profile:
    return dataclasses.replace(EXAMPLE, interrupted=interrupted)


@pytest.mark.parametrize(
    ("mode", "rollout", "staleness", "rounds", "tolerance"),
    [
        ("sync", 8, 0, 1, 1e-9),
        ("separate_async", 4, 0, 1, 0.01),  # the last scores of a round overlap with nothing
        ("separate_async", 4, 1, 1, 0.01),
        ("separate_async", 2, 1, 1, 0.01),
        ("separate_async", 6, 1, 1, 0.01),
        ("separate_async", 2, 2, 2, 0.01),
        ("separate_async", 6, 3, 2, 0.01),
        ("fully_async", 2, 1, 1, 0.01),
        ("fully_async", 6, 2, 1, 0.01),
    ],
)
def test_constant_times_take_what_the_closed_form_says(
    mode: str, rollout: int, staleness: int, rounds: int, tolerance: float
) -> None:
    placement = Placement(mode, 8, rollout, 1, 32, staleness, rounds)
    outcome = simulate(make_workload(profile(), COSTS, placement, 0.0), 40)
    planned = predict(COSTS, profile(), placement, 0.0)
    assert outcome.step_s == pytest.approx(planned.step_s, rel=tolerance)
    assert max(outcome.staleness) <= staleness
    assert sum(outcome.staleness.values()) == 40 * 32
    assert outcome.evicted_groups == 0
    assert outcome.rollout_busy == pytest.approx(planned.rollout_busy, abs=0.04)
    assert outcome.train_busy == pytest.approx(planned.train_busy, abs=0.04)


def test_work_that_is_thrown_away_takes_about_half_a_call_per_interruption() -> None:
    placement = Placement("fully_async", 8, 2, 1, 32, 1)
    outcome = simulate(make_workload(profile("restart"), COSTS, placement, 0.0), 40)
    planned = predict(COSTS, profile("restart"), placement, 0.0)
    assert outcome.step_s == pytest.approx(planned.step_s, rel=0.05)
    assert outcome.interrupted > 0
    assert 0.02 < outcome.lost < 0.1


def test_scattered_times_cost_more_than_constant_ones_and_running_further_ahead_helps() -> None:
    def step(times: str, staleness: int) -> float:
        placement = Placement("separate_async", 8, 4, 1, 32, staleness)
        return simulate(make_workload(profile(), COSTS, placement, 0.0, times=times), 120).step_s

    constant, scattered, further = step("constant", 1), step("lognormal:0.6", 1), step("lognormal:0.6", 4)
    assert constant < further < scattered


def test_a_seed_gives_one_outcome() -> None:
    work = make_workload(profile(), COSTS, Placement("fully_async", 8, 4, 1, 16, 2), 0.0, times="lognormal:0.5")
    assert simulate(work, 20, 3) == simulate(work, 20, 3)
    assert simulate(work, 20, 3).total_s != simulate(work, 20, 4).total_s


def test_a_group_is_as_old_as_the_oldest_call_that_drew_some_of_it() -> None:
    """Calls of 3 samples cut through groups of 4."""
    work = dataclasses.replace(
        make_workload(profile(), COSTS, Placement("separate_async", 4, 2, 1, 7, 2), 0.0, piece=3), samples=4
    )
    assert [size for _, size, _ in work.calls(1)] == [3] * 9 + [1]
    outcome = simulate(work, 30)
    assert sum(outcome.staleness.values()) == 30 * 7
    assert max(outcome.staleness) <= 2


def events(trace: Sequence[tuple[float, str, int]]) -> list[tuple[float, str, int]]:
    """Sorted within each instant, whose order is of no consequence."""
    return sorted((round(time, 6), event, number) for time, event, number in trace)


@pytest.mark.parametrize("mode", ["separate_async", "fully_async"])
@pytest.mark.parametrize(("staleness", "rounds"), [(0, 1), (1, 1), (2, 1), (2, 2)])
@pytest.mark.parametrize(("sample_s", "train_s"), [(1.0, 2.3), (1.0, 7.1), (1.0, 4.1)])
def test_it_goes_as_the_code_of_training_goes(
    mode: str, staleness: int, rounds: int, sample_s: float, train_s: float
) -> None:
    """Rounds, versions and seconds are those of the rollout stage, its gate and tasks, on the same clock."""
    work = toy_work(mode, staleness, rounds, sample_s, train_s)
    simulated = simulate(work, 8)

    async def main(loop: VirtualLoop) -> tuple[dict[int, int], ToyRun]:
        toy = ToyRun(work, 8, loop.spend)
        return await toy.run(), toy

    staleness_seen, toy = run_virtual(main)
    assert events(simulated.trace) == events(toy.trace)
    assert simulated.staleness == staleness_seen


def test_without_scatter_the_events_come_in_the_order_of_the_rules() -> None:
    trace = [(event, number) for _, event, number in simulate(toy_work("separate_async", 1, 1, 1.0, 2.3), 3).trace]
    assert trace == [
        ("submitted", 1), ("submitted", 2), ("stored", 1), ("trained", 1), ("stored", 2), ("published", 1),
        ("submitted", 3), ("trained", 2), ("stored", 3), ("published", 2), ("trained", 3), ("published", 3),
    ]  # fmt: skip


def test_the_clock_jumps_and_work_in_a_thread_takes_its_seconds() -> None:
    async def main(loop: VirtualLoop) -> list[tuple[str, float]]:
        seen = []

        async def sleeper() -> None:
            await asyncio.sleep(5.0)
            seen.append(("slept", loop.time()))

        task = asyncio.create_task(sleeper())
        answer = await asyncio.to_thread(lambda: loop.spend(1e6) or 42)
        seen.append((f"worked {answer}", loop.time()))
        loop.spend(2.0)
        seen.append(("worked here", loop.time()))
        await task
        return seen

    assert run_virtual(main) == [("slept", 5.0), ("worked 42", 1e6), ("worked here", 1e6 + 2)]


def test_errors_of_work_in_a_thread_arrive_and_a_dead_end_is_named() -> None:
    async def failing(loop: VirtualLoop) -> None:
        await asyncio.to_thread(lambda: 1 // 0)

    async def stuck(loop: VirtualLoop) -> None:
        await loop.create_future()

    with pytest.raises(ZeroDivisionError):
        run_virtual(failing)
    with pytest.raises(RuntimeError, match="never happen"):
        run_virtual(stuck)


def test_the_router_s_rule_sends_a_prompt_to_the_replica_that_knows_it() -> None:
    seating = RouterSeating(3)
    taken = [seating.take([name]) for name in "abc"]
    assert sorted(taken) == [0, 1, 2]
    assert seating.take(["a"]) == -1
    for index in (2, 0, 1):
        seating.leave(index)
    assert [seating.take([name]) for name in "cab"] == [taken[2], taken[0], taken[1]]


def test_many_replicas_take_turns() -> None:
    seating = IdleSeating(3)
    assert [seating.take([]) for _ in range(4)] == [0, 1, 2, -1]
    seating.leave(1)
    assert seating.take([]) == 1


def test_distributions_have_mean_1() -> None:
    ratio = make_ratio("lognormal:0.5", "seed")
    drawn = [ratio() for _ in range(20_000)]
    assert sum(drawn) / len(drawn) == pytest.approx(1, abs=0.02)
    assert make_ratio("constant", "seed")() == 1.0
    measured = make_ratio("measured", "seed", [2.0, 4.0, 0.0])
    assert {measured() for _ in range(50)} == {2 / 3, 4 / 3}
    for wrong in ("lognormal", "lognormal:x", "lognormal:-1", "normal:1", ""):
        with pytest.raises(ConfigError, match="valid choices: constant, lognormal:CV, measured"):
            make_ratio(wrong, "seed")
    with pytest.raises(ConfigError, match="needs a profile with 'rollout_s'"):
        make_ratio("measured", "seed")


def test_measured_ratios_are_those_of_the_rows() -> None:
    placed = Placement("sync", 1, 1, 1, 4)
    rows = tuple(Row(placed, 0.0, None, rollout, 2.0) for rollout in (3.0, 5.0))
    rollout, train = measured_ratios(Profile("p", rows), Costs(1.0, 0.0, 0.5, 0.0))
    assert (rollout, train) == ([0.75, 1.25], [1.0, 1.0])


def test_queues_and_buffers_are_measured_over_time() -> None:
    outcome: Outcome = simulate(toy_work("separate_async", 1, 1, 1.0, 7.1), 40)
    assert outcome.queue_max == 6  # two rounds of 4 calls, 2 of which are being drawn
    assert outcome.buffer_max == 4
    assert outcome.buffer_mean == pytest.approx(4 * (7.35 - 4) / 7.35, abs=0.1)  # drawn in 4 s, waits for the rest
    assert outcome.syncs == 41


@pytest.mark.parametrize(("scale", "message"), [(0.0, "nothing takes any time"), (1e12, "more than are simulated")])
def test_times_that_cannot_be_simulated(scale: float, message: str) -> None:
    costs = Costs(16.0 * scale, 0.0, 16.0 * scale, 0.0)
    with pytest.raises(ConfigError, match=message):
        check_size(make_workload(profile(), costs, Placement("sync", 8, 8, 1, 32), 0.0), 40)
