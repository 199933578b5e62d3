"""Requests of a round: their seeds, ids and order."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from omni_portable.config.schema import RolloutConfig
from omni_portable.contracts.rollout import RolloutRequest
from omni_portable.data.prompts import PromptRow
from omni_portable.trainer.requests import make_requests, round_seed
from tests.support.requests import PLAN, SCHEDULE

ROWS = [PromptRow("a", "an a", {"ground_truth": "A"}), PromptRow("b", "a b", {"ground_truth": "B"})]


def build(samples: int = 3, round_name: str = "step-7") -> list[RolloutRequest]:
    rollout = RolloutConfig(height=64, width=32, guidance_scale=2.0, negative_prompt="ugly")
    return make_requests(ROWS, rollout, samples=samples, schedule=SCHEDULE, plan=PLAN, seed=5, round_name=round_name)


@given(st.integers(0, 2**63 - 1), st.integers(0, 10**6))
def test_seeds_are_63_bit_and_repeatable(run_seed: int, step: int) -> None:
    seed = round_seed(run_seed, f"step-{step}")
    assert 0 <= seed < 2**63
    assert seed == round_seed(run_seed, f"step-{step}")


def test_seeds_differ_by_run_and_round() -> None:
    seeds = {round_seed(run, name) for run in range(20) for name in ("step-1", "step-2", "step-11", "validation")}
    assert len(seeds) == 80


def test_run_and_round_cannot_be_confused() -> None:
    assert round_seed(1, "1/step-1") != round_seed(11, "/step-1")


def test_samples_of_a_prompt_are_adjacent_and_numbered() -> None:
    requests = build()
    assert [(r.prompt_id, r.sample_index) for r in requests] == [(p, s) for p in ("a", "b") for s in range(3)]
    assert len({r.request_id for r in requests}) == 6
    assert [r.group_id for r in requests] == ["step-7/00000"] * 3 + ["step-7/00001"] * 3


def test_ids_of_two_rounds_differ() -> None:
    assert not {r.request_id for r in build()} & {r.request_id for r in build(round_name="step-8")}


def test_requests_carry_the_whole_shape() -> None:
    request = build()[-1]
    assert (request.height, request.width, request.guidance_scale, request.negative_prompt) == (64, 32, 2.0, "ugly")
    assert request.schedule is SCHEDULE
    assert request.plan is PLAN
    assert request.seed == 5
    assert request.prompt == "a b"
    assert request.metadata == {"ground_truth": "B"}
