"""The native engine over a real (tiny) Stable Diffusion 3, and an actor's adapter that replays what it recorded."""

import asyncio

import pytest
import torch

from omni_backends.rollout.native.engine import NativeRolloutEngine
from omni_portable.contracts.rollout import Extent, SamplingPlan
from omni_portable.models.lora import lora_named_tensors
from omni_portable.models.lora_file import inject_configured_lora
from omni_portable.models.policy import split_conditioning, transition
from omni_portable.models.sd3.tiny import build_tiny_sd3
from omni_portable.models.setup import load_adapter
from omni_portable.models.weights import make_stream
from tests.support.engines import make_setup
from tests.support.requests import make_request
from tests.support.trajectories import bit_equal, largest_gap

WINDOW = SamplingPlan(kind="cps", noise_level=0.8, stochastic_steps=(0, 2))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return build_tiny_sd3(tmp_path_factory.mktemp("sd3"))


def generate(engine, requests):
    return asyncio.run(engine.generate(requests)).trajectories


def requests_for(engine, count, **changes):
    schedule = engine._adapter.schedule(4, Extent(16, 16))
    return [make_request(i, height=16, width=16, schedule=schedule, plan=WINDOW, **changes) for i in range(count)]


def score(adapter, trajectories, step):
    """Log-probs of one stored step by the actor's own adapter, packed as the rollout packed it."""
    request = trajectories[0].request
    pairs = [split_conditioning(t.conditioning) for t in trajectories]
    with torch.no_grad():
        return transition(
            adapter,
            latents=torch.stack([t.latents[step] for t in trajectories]),
            step_index=torch.stack([t.step_indices[step] for t in trajectories]),
            schedule=request.schedule,
            kind=request.plan.kind,
            noise_level=request.plan.noise_level,
            conditioning=adapter.collate([positive for positive, _ in pairs]),
            negative=adapter.collate([negative for _, negative in pairs if negative is not None]),
            guidance_scale=request.guidance_scale,
            next_latents=torch.stack([t.next_latents[step] for t in trajectories]),
        ).log_prob


def test_a_batch_of_32_equals_serial_runs(folder, record_property):
    engine = NativeRolloutEngine(make_setup("sd3", folder))
    requests = requests_for(engine, 32)
    batched = generate(engine, requests)
    serial = [generate(engine, [request])[0] for request in requests]
    for field in ("final_latents", "log_probs"):
        gap = largest_gap(batched, serial, field)
        record_property(f"sd3/batch_32_vs_serial/{field}", gap)
        assert gap < 1e-5
    assert [t.request.request_id for t in batched] == [r.request_id for r in requests]


def test_the_actor_s_replay_is_bit_exact_before_and_after_a_weight_sync(folder):
    setup = make_setup("sd3", folder)
    engine, actor = NativeRolloutEngine(setup), load_adapter(setup, ("transformer",))
    lora = inject_configured_lora(actor, setup.config.model.lora, setup.config.trainer.seed)
    requests = requests_for(engine, 6, guidance_scale=3.5, negative_prompt="blurred")
    base = generate(engine, requests)
    for version in (0, 1):
        trajectories = generate(engine, requests)
        assert {t.policy_version for t in trajectories} == {version}
        for step in range(2):
            recorded = torch.stack([t.log_probs[step] for t in trajectories])
            assert torch.equal(score(actor, trajectories, step), recorded)
        with torch.no_grad():
            for index, (_, parameter) in enumerate(lora_named_tensors(actor.transformer)):
                parameter.add_(0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(index)))
        # replay notices that the actor moved on
        recorded = torch.stack([t.log_probs[0] for t in trajectories])
        assert not torch.equal(score(actor, trajectories, 0), recorded)
        engine.pause()
        engine.update_weights(make_stream("adapter", lora_named_tensors(actor.transformer), lora), version + 1)
        engine.resume()
    assert not bit_equal(generate(engine, requests), base)


@pytest.mark.parametrize("lora_rank", [0, 4])
def test_level_2_sleep_and_update_restore_bit_for_bit(folder, lora_rank):
    setup = make_setup("sd3", folder, lora_rank=lora_rank)
    engine, actor = NativeRolloutEngine(setup), load_adapter(setup, ("transformer",))
    lora = inject_configured_lora(actor, setup.config.model.lora, setup.config.trainer.seed)
    requests = requests_for(engine, 3)
    expected = generate(engine, requests)
    engine.pause()
    engine.sleep(2)
    engine.wake()
    named = lora_named_tensors(actor.transformer) if lora else actor.transformer.named_parameters()
    engine.update_weights(make_stream("adapter" if lora else "full", named, lora), 1)
    engine.resume()
    assert all(
        torch.equal(t.final_latents, e.final_latents) for t, e in zip(generate(engine, requests), expected, strict=True)
    )


def test_images_are_named_artifacts(folder):
    engine = NativeRolloutEngine(make_setup("sd3", folder))
    for trajectory in generate(engine, requests_for(engine, 2)):
        image = trajectory.artifacts["image"]
        assert (image.modality, image.data.dtype, image.data.shape) == ("image", torch.uint8, (3, 16, 16))
