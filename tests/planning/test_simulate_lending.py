"""Lending in the simulator: the real policy objects, nothing lost or doubled, nothing changed where nothing is lent."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from omni_portable.contracts.dataplane import ScoredGroup
from omni_portable.planning.placement.model import Costs
from omni_portable.planning.placement.profile import Placement
from omni_portable.planning.simulate import run as simulated_run
from omni_portable.planning.simulate.run import Outcome, simulate
from omni_portable.planning.simulate.workload import EXAMPLE, Loan, Workload, make_workload
from omni_portable.rollout.replay_buffer import ReplayBuffer

STEPS = 8


def work(
    mode: str = "separate_async", staleness: int = 1, loan: Loan | None = None, *, rollout: float = 16.0,
    train: float = 4.0, switch: float = 2.0, times: str = "constant", interrupted: str = "continue", scorers: int = 1,
    reward: float = 0.1, prompts: int = 6, piece: int | None = None,
) -> Workload:  # fmt: skip
    """On 6 devices, 2 of them rollout's; groups of 16 samples."""
    costs = Costs(rollout, 0.0, train, 0.0, reward=reward, sync=1.0, switch=switch)
    placement = Placement(mode, 6, 2, 1, prompts, staleness)
    profile = dataclasses.replace(EXAMPLE, interrupted=interrupted)
    return make_workload(profile, costs, placement, 0.0, times=times, scorers=scorers, piece=piece, loan=loan)


loans = st.tuples(st.integers(1, 4), st.sampled_from([0.25, 0.6, 1.0]), st.sampled_from([0.7, 1.0])).map(
    lambda drawn: Loan(drawn[0], min(drawn[1], drawn[2]), drawn[2], sleep_level=drawn[0] % 3)
)
workloads: st.SearchStrategy[Callable[[Loan | None], Workload]] = st.builds(
    lambda **chosen: lambda loan: work(loan=loan, **chosen),
    mode=st.sampled_from(["separate_async", "fully_async"]),
    staleness=st.integers(0, 3),
    rollout=st.sampled_from([0.5, 8.0, 40.0]),
    train=st.sampled_from([1.0, 20.0]),
    switch=st.sampled_from([0.0, 3.0, 60.0]),
    times=st.sampled_from(["constant", "lognormal:0.6"]),
    interrupted=st.sampled_from(["continue", "restart"]),
    scorers=st.integers(1, 3),
    reward=st.sampled_from([0.0, 0.1, 6.0]),
    prompts=st.integers(2, 7),
    piece=st.sampled_from([None, 3, 16]),
)


class Watched(ReplayBuffer):
    """Remembers what was put in and taken out."""

    put: Counter[str]
    taken: Counter[str]

    def add(self, group: ScoredGroup) -> None:
        type(self).put[group.group_id] += 1
        super().add(group)

    def sample(self, *arguments: Any, **named: Any) -> list[ScoredGroup]:
        groups = super().sample(*arguments, **named)
        type(self).taken.update(group.group_id for group in groups)
        return groups


def watched(monkeypatch: pytest.MonkeyPatch, workload: Workload, seed: int) -> Outcome:
    Watched.put, Watched.taken = Counter(), Counter()
    monkeypatch.setattr(simulated_run, "ReplayBuffer", Watched)
    return simulate(workload, STEPS, seed)


@given(make=workloads, loan=loans, seed=st.integers(0, 50))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_lending_loses_no_group_and_doubles_none(
    make: Callable[[Loan | None], Workload], loan: Loan, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    workload = make(loan)
    outcome = watched(monkeypatch, workload, seed)
    prompts = workload.placement.prompts
    everyone = {f"{step}-{index}": 1 for step in range(1, STEPS + 1) for index in range(prompts)}
    assert Watched.put == everyone
    assert Watched.taken == everyone
    assert outcome.evicted_groups == 0
    assert max(outcome.staleness) <= workload.placement.max_staleness
    stored = [number for _, event, number in outcome.trace if event == "stored"]
    assert sorted(stored) == list(range(1, STEPS + 1))


@given(make=workloads, loan=loans, seed=st.integers(0, 50))
@settings(max_examples=40, deadline=None)
def test_where_the_threshold_is_never_reached_the_run_is_the_one_without(
    make: Callable[[Loan | None], Workload], loan: Loan, seed: int
) -> None:
    never = dataclasses.replace(loan, lend_below=0.0)
    assert simulate(make(never), STEPS, seed) == simulate(make(None), STEPS, seed)


def test_a_buffer_that_is_never_short_after_the_first_step_lends_once() -> None:
    lent = simulate(work(loan=Loan(2), rollout=4.0, train=40.0), STEPS)
    without = simulate(work(rollout=4.0, train=40.0), STEPS)
    assert lent.lends == 2
    assert lent.step_s == without.step_s


@pytest.mark.parametrize("mode", ["separate_async", "fully_async"])
def test_devices_that_wait_draw_and_steps_are_shorter(mode: str) -> None:
    lent, without = simulate(work(mode, loan=Loan(4)), 20), simulate(work(mode), 20)
    assert lent.step_s < 0.8 * without.step_s
    assert lent.lends == 20 * 4
    assert 0.3 < lent.lent_samples < 0.9
    assert 0.5 < lent.lent_busy <= 1.0
    assert lent.queue_mean < without.queue_mean
    assert without.lends == without.lent_s == without.lent_samples == 0


def test_waking_that_takes_longer_than_the_wait_is_a_loss_and_shown_as_one() -> None:
    slow = simulate(work(loan=Loan(4), switch=200.0), 20)
    assert slow.lent_samples == 0
    assert slow.step_s > simulate(work(switch=200.0), 20).step_s


def test_devices_that_are_taken_back_early_give_their_calls_to_the_others() -> None:
    early = simulate(work(loan=Loan(4, 0.5, 0.5), interrupted="restart"), 20)
    late = simulate(work(loan=Loan(4, 0.5, 1.0), interrupted="restart"), 20)
    assert early.interrupted > 0
    assert early.lost > 0
    assert early.lent_samples < late.lent_samples
    assert late.step_s < early.step_s
