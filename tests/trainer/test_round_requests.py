"""Requests of a round: their seeds, ids and order."""

from __future__ import annotations

from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omni_portable.config.drawing import validation_data
from omni_portable.config.schema import DataConfig, MediaConfig, RolloutConfig, RunConfig, ValidationConfig
from omni_portable.contracts.errors import ConfigError
from omni_portable.contracts.reward import GIVEN_SAMPLE
from omni_portable.contracts.rollout import Extent, RolloutRequest, Schedule
from omni_portable.data.prompts import PromptRow
from omni_portable.trainer.drawing import Schedules, drawing
from omni_portable.trainer.requests import make_requests, make_token_requests, round_seed
from tests.support.media import picture
from tests.support.requests import PLAN, SCHEDULE
from tests.trainer.trainer_fakes import GroupMean

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


MEDIA = {"image": picture()}
GIVEN = [PromptRow("a", "an a", {"x": 1}, MEDIA, ({"image": picture(1)}, {"image": picture(2)}))]


def test_requests_carry_media_frames_and_rate() -> None:
    rollout = RolloutConfig(num_frames=9, frame_rate=12.0)
    (request,) = make_requests(
        [PromptRow("a", "an a", {}, MEDIA)], rollout, samples=1, schedule=SCHEDULE, plan=PLAN, seed=5, round_name="r"
    )
    assert request.media is MEDIA
    assert (request.num_frames, request.frame_rate, request.target) == (9, 12.0, {})
    token = make_token_requests(
        [PromptRow("a", "an a", {}, MEDIA)], rollout, samples=1, temperature=1.0, seed=5, round_name="r"
    )
    assert token[0].media is MEDIA


def test_each_sample_of_a_prompt_gets_its_target_and_knows_its_place() -> None:
    requests = make_requests(
        GIVEN, RolloutConfig(), samples=2, schedule=SCHEDULE, plan=PLAN, seed=5, round_name="step-1"
    )
    assert [request.target for request in requests] == list(GIVEN[0].targets)
    assert [request.metadata for request in requests] == [{"x": 1, GIVEN_SAMPLE: 0}, {"x": 1, GIVEN_SAMPLE: 1}]
    with pytest.raises(ConfigError, match="prompt 'a' has targets for 2 samples, 3 are wanted"):
        make_requests(GIVEN, RolloutConfig(), samples=3, schedule=SCHEDULE, plan=PLAN, seed=5, round_name="step-1")


def test_the_probe_is_drawn_even_where_the_dataset_gives_samples() -> None:
    config = RunConfig(rollout=RolloutConfig(n=2))
    draw = drawing(config, GroupMean(), Schedules(SCHEDULE, SCHEDULE))
    assert draw.probe(GIVEN[0]).target == {}  # type: ignore[union-attr]
    assert len([request for request in draw.training(GIVEN, 1, "step-1") if request.target]) == 2  # type: ignore[union-attr]


def test_validation_draws_another_size_in_other_steps_and_training_does_not() -> None:
    validation = ValidationConfig(num_steps=3, height=64, width=96, num_frames=5, guidance_scale=2.0)
    config = RunConfig(rollout=RolloutConfig(n=2, height=32, width=48), validation=validation)
    longer = Schedule((1.0, 0.9, 0.5, 0.0), key="longer")
    draw = drawing(config, GroupMean(), Schedules(SCHEDULE, longer))
    row = PromptRow("a", "an a", {})
    (drawn,) = cast(list[RolloutRequest], draw.validation([row]))
    assert (drawn.extent, drawn.guidance_scale, drawn.schedule) == (Extent(64, 96, 5), 2.0, longer)
    for request in cast(list[RolloutRequest], [*draw.training([row], 1, "step-1"), draw.probe(row)]):
        assert (request.extent, request.guidance_scale, request.schedule) == (Extent(32, 48), 1.0, SCHEDULE)


def test_validation_draws_as_training_does_where_nothing_is_said() -> None:
    config = RunConfig(rollout=RolloutConfig(n=2, height=32, width=48, guidance_scale=3.0))
    (drawn,) = drawing(config, GroupMean(), Schedules(SCHEDULE, SCHEDULE)).validation([PromptRow("a", "an a", {})])
    assert (drawn.extent, drawn.guidance_scale, drawn.schedule) == (Extent(32, 48), 3.0, SCHEDULE)  # type: ignore[union-attr]


def test_input_media_of_the_size_of_samples_are_of_the_size_of_validation_samples_there() -> None:
    def medium(height: int, width: int) -> MediaConfig:
        return MediaConfig(modality="image", height=height, width=width)

    media = {"first_frame": medium(32, 48), "shown": medium(16, 16), "whole": medium(0, 0)}
    config = RunConfig(rollout=RolloutConfig(height=32, width=48), data=DataConfig(media=media))
    assert validation_data(config) is config.data
    config.validation = ValidationConfig(height=64)
    assert {name: (one.height, one.width) for name, one in validation_data(config).media.items()} == {
        "first_frame": (64, 48),
        "shown": (16, 16),
        "whole": (0, 0),
    }
    assert media["first_frame"].height == 32
