"""The dataset engine over a real (tiny) Stable Diffusion 3: given media become trajectories, the rest is drawn."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
import torch

from omni_backends.rollout.dataset.engine import DatasetRolloutEngine
from omni_backends.rollout.native.engine import NativeRolloutEngine
from omni_portable.contracts.errors import ArtifactError, DataError, LifecycleError
from omni_portable.contracts.media import MediaArtifact
from omni_portable.contracts.rollout import Extent, RolloutEngine, SamplingPlan
from omni_portable.models.policy import split_conditioning
from omni_portable.models.sd3.tiny import build_tiny_sd3
from tests.support.engines import make_setup
from tests.support.media import picture, tone
from tests.support.requests import make_request
from tests.support.trajectories import bit_equal

ODE = SamplingPlan()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return build_tiny_sd3(tmp_path_factory.mktemp("sd3"))


@pytest.fixture
def engine(folder):
    return DatasetRolloutEngine(make_setup("sd3", folder))


def generate(engine, requests):
    return asyncio.run(engine.generate(requests)).trajectories


def requests_for(engine, targets, group=2, **changes):
    """One request per target; None is drawn."""
    schedule = engine._adapter.schedule(4, Extent(16, 16))
    changes = {"height": 16, "width": 16, "schedule": schedule, "plan": ODE} | changes
    return [
        make_request(
            i,
            group_id=f"g{i // group}",
            prompt_id=f"p{i // group}",
            sample_index=i % group,
            target={} if target is None else {"image": target},
            **changes,
        )
        for i, target in enumerate(targets)
    ]


def test_it_implements_the_contract(engine):
    assert isinstance(engine, RolloutEngine)
    assert engine.name == "dataset"


def test_a_target_becomes_clean_latents_with_the_prompt_s_conditioning(engine):
    targets = [picture(i, 16, 16) for i in range(4)]
    requests = requests_for(engine, targets)
    for trajectory, request in zip(generate(engine, requests), requests, strict=True):
        assert trajectory.request is request
        encoded = engine._adapter.encode_media(request.target, request.extent)
        assert torch.equal(trajectory.final_latents, encoded)
        assert trajectory.final_latents.dtype == torch.float32
        assert (trajectory.latents.shape, trajectory.log_probs.shape) == ((0, *encoded.shape), (0,))
        assert trajectory.schedule_fingerprint == request.schedule.fingerprint
        assert trajectory.artifacts["image"] is request.target["image"]
        drawn = NativeRolloutEngine(engine._setup)
        (same_prompt,) = generate(drawn, [replace(request, target={})])
        assert all(torch.equal(t, same_prompt.conditioning[n]) for n, t in trajectory.conditioning.items())


def test_guidance_brings_the_negative_prompt(engine):
    (trajectory,) = generate(
        engine, requests_for(engine, [picture(0, 16, 16)], 1, guidance_scale=3.0, negative_prompt="grey")
    )
    positive, negative = split_conditioning(trajectory.conditioning)
    assert negative is not None
    assert not torch.equal(positive["prompt_embeds"], negative["prompt_embeds"])


def test_requests_without_a_target_are_drawn_exactly_as_native_draws_them(folder, engine):
    plan = SamplingPlan(kind="cps", noise_level=0.8, stochastic_steps=(0, 2))
    mixed = [None, picture(0, 16, 16), None, None, picture(1, 16, 16), picture(2, 16, 16)]
    requests = requests_for(engine, mixed, plan=plan)
    found = generate(engine, requests)
    assert [t.request.request_id for t in found] == [r.request_id for r in requests]
    drawn = [request for request in requests if not request.target]
    expected = generate(NativeRolloutEngine(make_setup("sd3", folder)), drawn)
    assert bit_equal([t for t in found if not t.request.target], expected)
    assert [t.engine for t in found if not t.request.target] == ["dataset"] * 3


def test_a_pair_of_equal_media_is_refused(engine):
    pair = [picture(0, 16, 16), picture(1, 16, 16)]
    with pytest.raises(DataError, match="samples 0 and 1 of prompt 'p1' .'prompt 0'. have equal media"):
        generate(engine, requests_for(engine, [*pair, pair[0], pair[0]], prompt="prompt 0"))
    assert len(generate(engine, requests_for(engine, [pair[0], pair[0]], 1))) == 2, "of two prompts they may be equal"


@pytest.mark.parametrize(
    ("target", "message"),
    [
        (picture(0, 8, 16), "the target of prompt 'p0' .*has 8 x 16 pixels, expected 16 x 16"),
        (replace(tone(), name="image"), "the target of prompt 'p0' .*needs 'image' to be image"),
    ],
)
def test_targets_of_another_size_or_kind_name_the_prompt(engine, target, message):
    with pytest.raises(ArtifactError, match=message):
        generate(engine, requests_for(engine, [target]))


def test_a_missing_artifact_names_the_prompt(engine):
    (request,) = requests_for(engine, [picture(0, 16, 16)], 1)
    other = replace(
        request, target={"video": MediaArtifact("x", "image", torch.zeros(3, 16, 16, dtype=torch.uint8), "CHW")}
    )
    with pytest.raises(ArtifactError, match="prompt 'p0' .*asks for the artifact 'image'"):
        generate(engine, [other])
    assert len(generate(engine, [request])) == 1, "the engine is not left in a strange state"


def test_aborted_targets_are_left_out(engine):
    requests = requests_for(engine, [picture(i, 16, 16) for i in range(4)], 1)

    async def run():
        task = asyncio.create_task(engine.generate(requests))
        await asyncio.sleep(0)
        ack = engine.abort(["r2"])
        return ack, await task

    ack, result = asyncio.run(run())
    assert ack.aborted == ("r2",)
    assert result.aborted == ("r2",)
    assert [t.request.request_id for t in result.trajectories] == ["r0", "r1", "r3"]


def test_it_pauses_and_sleeps_like_the_native_engine(engine):
    requests = requests_for(engine, [picture(0, 16, 16)], 1)
    engine.pause()
    with pytest.raises(LifecycleError):
        generate(engine, requests)
    engine.sleep(1)
    engine.wake()
    engine.resume()
    (trajectory,) = generate(engine, requests)
    assert trajectory.policy_version == engine.health().policy_version
    assert engine.statistics()["perf/rollout/requests"] == 1.0
