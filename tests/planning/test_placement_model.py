"""The model of placement: published figures from two thirds of them, arithmetic, and fits under non-negativity."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from omni_portable.contracts.errors import ConfigError
from omni_portable.planning.placement.advise import Request, advise, crossovers, placements
from omni_portable.planning.placement.fit import fit, non_negative_least_squares
from omni_portable.planning.placement.model import Costs, predict
from omni_portable.planning.placement.profile import Placement, Profile, Row, load_profile

PUBLISHED = Path(__file__).resolve().parents[1] / "data" / "placement_minicpm_o.json"
LENGTHS = (101.0, 512.0, 1024.0)


@pytest.fixture(scope="module")
def published() -> Profile:
    return load_profile(PUBLISHED)


def without(profile: Profile, tokens: float) -> Profile:
    return profile.only(*(row for row in profile.rows if row.tokens != tokens))


def worst_error(profile: Profile, left_out: float) -> float:
    """Largest relative error over both placements at a length that the fit has not seen."""
    costs = fit(without(profile, left_out))[0].costs
    rows = [row for row in profile.rows if row.tokens == left_out]
    assert {row.placement.mode for row in rows} == {"sync", "separate_async"}
    return max(abs(predict(costs, profile, row.placement, row.tokens).step_s / row.step_s - 1) for row in rows)


def test_the_published_figures_are_per_prompt(published: Profile) -> None:
    found = [round(row.step_s / row.placement.prompts, 3) for row in published.rows]
    assert found == [1.522, 1.663, 2.029, 2.039, 2.813, 2.624]


@pytest.mark.parametrize("left_out", LENGTHS)
def test_two_lengths_give_the_third(published: Profile, left_out: float) -> None:
    assert worst_error(published, left_out) < 0.01


@pytest.mark.parametrize("context", [800.0, 1000.0, 2000.0, 3000.0, 4500.0])
@pytest.mark.parametrize("left_out", LENGTHS)
def test_the_context_length_need_not_be_known_well(published: Profile, left_out: float, context: float) -> None:
    assert worst_error(dataclasses.replace(published, context_tokens=context), left_out) < 0.05


def test_without_a_cost_of_context_it_would_not_do(published: Profile) -> None:
    assert worst_error(dataclasses.replace(published, context_tokens=0.0), 101.0) > 0.05


@pytest.mark.parametrize("left_out", [None, *LENGTHS])
def test_the_crossover_lies_between_the_lengths_it_was_seen_between(published: Profile, left_out: float | None) -> None:
    profile = published if left_out is None else without(published, left_out)
    first = crossovers(profile, Request(4), fit(profile)[0])[0]
    assert 512 < first < 1024


@pytest.mark.parametrize(
    ("tokens", "mode", "split"),
    [(101, "sync", "4+0 (2xTP2)"), (512, "sync", "4+0 (2xTP2)"), (1024, "separate_async", "3+1 (1xTP1)")],
)
def test_what_is_recommended_is_what_was_measured_to_be_fastest(
    published: Profile, tokens: float, mode: str, split: str
) -> None:
    advice = advise(published, Request(4, (tokens,)))
    chosen = advice.choices[0].recommended.prediction.placement
    assert (chosen.mode, chosen.split) == (mode, split)
    assert any("per prompt, not per step" in note for note in advice.notes)


def test_whole_steps_alone_leave_open_which_side_held_them_up(published: Profile) -> None:
    advice = advise(published, Request(4, (101,)))
    options = {option.prediction.placement.split: option for option in advice.choices[0].options}
    assert options["3+1 (1xTP1)"].high - options["3+1 (1xTP1)"].low < 0.01
    assert options["2+2 (2xTP1)"].high - options["2+2 (2xTP1)"].low > 0.3
    assert any("sets of costs" in note for note in advice.notes)


COSTS = Costs(4.0, 0.02, 6.0, 0.01, reward=0.05, sync=3.0, switch=5.0)
PLAIN = Profile("plain", (), samples_per_prompt=8)


def test_sides_add_up_in_turn_and_the_slower_one_counts_beside_each_other() -> None:
    sync = predict(COSTS, PLAIN, Placement("sync", 4, 4, 1, 32), 100)
    assert sync.rollout_s == 32 * 6 / 4
    assert sync.train_s == 32 * 7 / 4
    assert sync.step_s == sync.rollout_s + sync.train_s + 32 * 0.05 + 3 + 5
    separate = predict(COSTS, PLAIN, Placement("separate_async", 4, 2, 1, 32, 1), 100)
    assert (separate.step_s, separate.bound) == (32 * 7 / 2 + 3, "training")
    in_turn = predict(COSTS, PLAIN, Placement("separate_async", 4, 2, 1, 32, 0), 100)
    assert (in_turn.step_s, in_turn.bound) == (32 * 6 / 2 + 32 * 7 / 2 + 3, "all in turn")
    seldom = predict(COSTS, PLAIN, Placement("separate_async", 4, 3, 1, 32, 1, 4), 100)
    assert seldom.step_s == 32 * 7 + 3 / 4


def test_interruptions_cost_rollout_what_they_throw_away() -> None:
    placement = Placement("fully_async", 4, 1, 1, 32, 1)
    kept = predict(COSTS, dataclasses.replace(PLAIN, interrupted="continue"), placement, 100)
    lost = predict(COSTS, PLAIN, placement, 100, pieces=10)
    assert kept.lost_s == 0
    assert lost.lost_s == pytest.approx(kept.rollout_s / 20)
    assert lost.step_s == pytest.approx(kept.step_s + kept.rollout_s / 20)


def test_replicas_of_several_devices_pay_for_it_unless_the_profile_says_otherwise() -> None:
    placement = Placement("separate_async", 8, 4, 4, 32, 1)
    assert PLAIN.efficiency(1) == 1
    assert PLAIN.efficiency(4) == 0.75**2
    measured = dataclasses.replace(PLAIN, tensor_parallel_efficiency={4: 1.0})
    ratio = predict(COSTS, PLAIN, placement, 0).rollout_s / predict(COSTS, measured, placement, 0).rollout_s
    assert ratio == pytest.approx(1 / 0.75**2)


positive = st.floats(0.1, 50)


@settings(max_examples=25, deadline=None)
@given(positive, st.floats(0.001, 0.1), positive, st.floats(0.001, 0.1), st.just(0.0) | st.floats(100, 3000))
def test_measured_stages_give_their_costs_back(r0: float, r1: float, t0: float, t1: float, context: float) -> None:
    costs = Costs(r0, r1, t0, t1, reward=0.5, sync=2.0, switch=1.0)
    profile = dataclasses.replace(PLAIN, context_tokens=context)
    rows = []
    for tokens, mode, rollout in ((50.0, "sync", 4), (400.0, "sync", 4), (900.0, "separate_async", 3)):
        placement = Placement(mode, 4, rollout, 1, 64, 0 if mode == "sync" else 1)
        step = predict(costs, profile, placement, tokens)
        switch = step.switch_s if mode == "sync" else None
        rows.append(Row(placement, tokens, None, step.rollout_s, step.train_s, step.reward_s, step.sync_s, switch))
    found = fit(profile.only(*rows))
    assert len(found) == 1
    assert found[0].error < 1e-6
    assert dataclasses.astuple(found[0].costs) == pytest.approx(dataclasses.astuple(costs), rel=1e-5)


@given(st.lists(st.lists(st.floats(-5, 5), min_size=4, max_size=4), min_size=3, max_size=6), st.integers(0, 99))
@example([[0.0, 0.0, 0.0, 1.0], [0.0, 0.0, 0.0, 0.0], [0.0, 0.0, 1.401298464324817e-45, 0.0]], 0)
@example([[0.0, 0.0, 0.0, 2.2250738585e-313], [0.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0]], 0)
@example([[1e-150, 0.0, 0.0, 1.1e-150], [0.0, 5e-324, 0.0, 0.0], [0.0, 0.0, 1e-300, 0.0]], 0)
@settings(max_examples=40, deadline=None)
def test_no_other_non_negative_solution_is_closer(rows: list[list[float]], seed: int) -> None:
    matrix, generator = np.array(rows), np.random.default_rng(seed)
    values = generator.normal(size=len(rows))
    found = non_negative_least_squares(matrix, values)
    assert (found >= 0).all()
    error = np.linalg.norm(matrix @ found - values)
    for scale in (1.0, 0.1, 0.01):
        other = np.maximum(found + scale * generator.normal(size=(200, 4)), 0)
        assert error <= np.linalg.norm(other @ matrix.T - values, axis=1).min() + 1e-7


def test_too_many_unknown_sides_are_refused() -> None:
    rows = [
        Row(Placement("separate_async", 16, split, 1, 64, 1), tokens, 100.0)
        for split in range(1, 8)
        for tokens in (100.0, 200.0, 300.0)
    ]
    with pytest.raises(ConfigError, match="too many ways to explain them"):
        fit(PLAIN.only(*rows))


def test_every_split_is_tried_and_many_are_thinned_out() -> None:
    profile = PLAIN.only(Row(Placement("sync", 4, 4, 2, 32), 0.0, None, 4.0, 4.0))
    found = list(placements(profile, Request(8)))
    assert [p.rollout_devices for p in found if p.mode == "separate_async"] == [2, 4, 6]
    assert [p.split for p in found if p.mode == "sync"] == ["8+0 (4xTP2)"]
    many = [p.rollout_devices for p in placements(profile, Request(4096)) if p.mode == "fully_async"]
    assert len(many) == 128
    assert (many[0], many[-1]) == (2, 4094)
    with pytest.raises(ConfigError, match="65537 devices are more than are planned"):
        advise(profile, Request(65_537))
    with pytest.raises(ConfigError, match="no placement fits 1 devices"):
        advise(profile, Request(1))


def test_samples_that_do_not_divide_among_the_trainers_devices_are_named() -> None:
    rows = (Row(Placement("separate_async", 4, 1, 1, 128), 0.0, None, 10.0, 10.0),)
    advice = advise(Profile("p", rows, samples_per_prompt=16), Request(4))
    assert any("2048 samples do not divide among 3 training devices; 129 prompts" in note for note in advice.notes)


@pytest.mark.parametrize(("prompts", "samples", "trainers", "nearest"), [(4, 4, 5, 5), (7, 4, 5, 5), (3, 4, 8, 4)])
def test_the_nearest_number_of_prompts_really_divides(prompts: int, samples: int, trainers: int, nearest: int) -> None:
    from omni_portable.planning.placement.advise import _nearest

    profile = Profile("p", (), samples_per_prompt=samples)
    placed = Placement("separate_async", trainers + 1, 1, 1, prompts)
    assert _nearest(profile, placed) == nearest
    assert nearest * samples % trainers == 0


def test_what_lending_would_change_is_not_claimed(published: Profile) -> None:
    from omni_portable.planning.placement.advise import NO_LENDING
    from omni_portable.planning.placement.text import advice_as_text

    advice = advise(published, Request(4, (512,)))
    assert NO_LENDING in advice.notes
    assert "trainer.hybrid" in advice_as_text(advice)
