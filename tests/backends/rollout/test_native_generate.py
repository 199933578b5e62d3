import asyncio
from dataclasses import replace

import pytest
import torch

from omni_portable.contracts.errors import ConfigError, NonFiniteError
from omni_portable.contracts.media import MediaArtifact
from omni_portable.contracts.rollout import RolloutEngine, SamplingPlan
from omni_portable.models.policy import split_conditioning, transition
from omni_portable.samplers.noise import INITIAL, unit_noise
from tests.support.requests import PLAN, SCHEDULE, make_request
from tests.support.trajectories import bit_equal, largest_gap


def generate(engine, requests):
    result = asyncio.run(engine.generate(requests))
    assert result.aborted == ()
    return result.trajectories


def test_it_implements_the_contract(make_engine):
    assert isinstance(make_engine(), RolloutEngine)


def test_trajectory_holds_the_chain_it_claims(make_engine):
    engine = make_engine()
    request = make_request(5)
    (trajectory,) = generate(engine, [request])
    assert trajectory.schedule_fingerprint == SCHEDULE.fingerprint
    assert (trajectory.policy_version, trajectory.engine) == (0, "native")
    assert trajectory.step_indices.tolist() == [1, 2]
    assert torch.equal(trajectory.next_latents[0], trajectory.latents[1])
    assert trajectory.log_probs.dtype == torch.float32
    assert trajectory.artifacts["image"].data.shape == (3, 4, 4)
    # the last step is deterministic: an Euler step from the last recorded latents
    adapter = engine._adapter
    velocity = adapter.velocity(
        trajectory.next_latents[1:],
        torch.tensor([0.25 * 1000]),
        {"tokens": trajectory.conditioning["tokens"][None]},
        1.0,
    )
    expected = trajectory.next_latents[1] + velocity[0] * (0.0 - 0.25)
    torch.testing.assert_close(trajectory.final_latents, expected.detach(), rtol=0, atol=1e-6)


def test_first_stochastic_step_starts_from_the_request_s_own_noise(make_engine):
    request = make_request(plan=replace(PLAN, stochastic_steps=(0,)))
    (trajectory,) = generate(make_engine(), [request])
    assert torch.equal(trajectory.latents, unit_noise([request], INITIAL, (4, 4, 4)))


def test_a_batch_of_32_equals_serial_runs_in_order(make_engine, record_property):
    requests = [make_request(i) for i in range(32)]
    engine = make_engine()
    batched = generate(engine, requests)
    assert [t.request.request_id for t in batched] == [r.request_id for r in requests]
    assert [(t.batch_size, t.batch_row) for t in batched] == [(32, row) for row in range(32)]
    serial = [generate(engine, [request])[0] for request in requests]
    for field in ("latents", "next_latents", "log_probs", "final_latents"):
        gap = largest_gap(batched, serial, field)
        record_property(f"batch_32_vs_serial/{field}", gap)
        assert gap < 1e-5
    # every forward really held all rows
    assert set(engine._adapter.batches[: SCHEDULE.num_steps]) == {32}


def test_a_sample_hardly_depends_on_its_company(make_engine, record_property):
    engine, mine = make_engine(), make_request(0)
    alone = generate(engine, [mine])
    others = [make_request(i, prompt=f"other {i}") for i in range(1, 8)]
    companies = {"first of 8": [mine, *others], "last of 8": [*others, mine], "of 3": [others[4], mine, others[2]]}
    for name, requests in companies.items():
        mixed = [t for t in generate(engine, requests) if t.request is mine]
        for field in ("latents", "final_latents", "log_probs"):
            gap = largest_gap(mixed, alone, field)
            record_property(f"{name}/{field}", gap)
            assert gap < 1e-5


def test_the_same_call_gives_the_same_bits(make_engine):
    requests = [make_request(i) for i in range(6)]
    assert bit_equal(generate(make_engine(), requests), generate(make_engine(), requests))


@pytest.mark.parametrize("kind", ["sde", "cps", "dance_sde"])
@pytest.mark.parametrize("guidance", [1.0, 4.0])
@pytest.mark.parametrize("windows", [[(1, 2)], [(0, 1), (1, 2), (0, 2)]])
def test_replay_of_a_pack_is_bit_exact(make_engine, kind, guidance, windows):
    engine = make_engine()
    plans = [replace(PLAN, kind=kind, stochastic_steps=windows[i % len(windows)]) for i in range(6)]
    requests = [
        make_request(i, plan=plan, guidance_scale=guidance, negative_prompt="bad") for i, plan in enumerate(plans)
    ]
    trajectories = generate(engine, requests)
    pairs = [split_conditioning(t.conditioning) for t in trajectories]
    positive = engine._adapter.collate([p for p, _ in pairs])
    negative = engine._adapter.collate([n for _, n in pairs]) if guidance != 1.0 else None
    for w in range(2):
        with torch.no_grad():
            scored = transition(
                engine._adapter,
                latents=torch.stack([t.latents[w] for t in trajectories]),
                step_index=torch.stack([t.step_indices[w] for t in trajectories]),
                schedule=SCHEDULE,
                kind=kind,
                noise_level=PLAN.noise_level,
                conditioning=positive,
                negative=negative,
                guidance_scale=guidance,
                next_latents=torch.stack([t.next_latents[w] for t in trajectories]),
            )
        assert torch.equal(scored.log_prob, torch.stack([t.log_probs[w] for t in trajectories]))


def test_rows_of_one_pack_keep_their_own_windows(make_engine):
    windows = [(0, 1), (1, 2), (2, 3), (0, 3)]
    requests = [make_request(i, plan=replace(PLAN, stochastic_steps=w)) for i, w in enumerate(windows)]
    trajectories = generate(make_engine(), requests)
    assert [tuple(t.step_indices.tolist()) for t in trajectories] == windows
    assert {t.batch_size for t in trajectories} == {4}
    alone = [generate(make_engine(), [request])[0] for request in requests]
    assert largest_gap(trajectories, alone, "next_latents") < 1e-5


def test_noise_makes_samples_of_one_prompt_differ_and_plans_without_noise_repeat(make_engine):
    engine = make_engine()
    noisy = generate(engine, [make_request(0), make_request(1)])
    assert not torch.equal(noisy[0].final_latents, noisy[1].final_latents)
    (plain,) = generate(engine, [make_request(0, plan=SamplingPlan())])
    assert (plain.latents.shape, plain.log_probs.shape) == ((0, 4, 4, 4), (0,))
    assert not torch.equal(plain.final_latents, noisy[0].final_latents)
    (unrecorded,) = generate(engine, [make_request(0, plan=replace(PLAN, record_transitions=False))])
    assert unrecorded.step_indices.numel() == 0
    torch.testing.assert_close(unrecorded.final_latents, noisy[0].final_latents, rtol=0, atol=1e-5)


@pytest.mark.parametrize("plan", [replace(PLAN, record_every_step=True), SamplingPlan(record_every_step=True)])
def test_every_step_may_be_kept_with_a_log_prob_where_it_was_drawn(make_engine, plan):
    request = make_request(5, plan=plan)
    (kept,) = generate(make_engine(), [request])
    assert kept.step_indices.tolist() == list(range(SCHEDULE.num_steps))
    assert kept.log_probs.isfinite().nonzero().flatten().tolist() == list(plan.stochastic_steps)
    assert torch.equal(kept.latents[0], unit_noise([request], INITIAL, (4, 4, 4))[0])
    assert torch.equal(kept.latents[1:], kept.next_latents[:-1])
    assert torch.equal(kept.next_latents[-1], kept.final_latents)
    (plain,) = generate(make_engine(), [make_request(5, plan=replace(plan, record_every_step=False))])
    assert torch.equal(plain.final_latents, kept.final_latents)


def test_the_negative_prompt_may_be_kept_without_guiding(make_engine):
    requests = [make_request(5, plan=replace(PLAN, keep_negative=kept), negative_prompt="grey") for kept in (0, 1)]
    without, kept = (generate(make_engine(), [request])[0] for request in requests)
    assert torch.equal(kept.final_latents, without.final_latents)
    assert split_conditioning(without.conditioning)[1] is None
    positive, negative = split_conditioning(kept.conditioning)
    assert negative is not None
    assert negative.keys() == positive.keys()
    assert not torch.equal(negative["tokens"], positive["tokens"])


def test_mixed_shapes_are_packed_apart_and_come_back_in_order(make_engine):
    requests = [make_request(i, height=64 if i % 2 else 32) for i in range(6)]
    engine = make_engine()
    trajectories = generate(engine, requests)
    assert [t.request.request_id for t in trajectories] == [r.request_id for r in requests]
    assert [t.final_latents.shape[1] for t in trajectories] == [4, 8] * 3
    figures = engine.statistics()
    assert (figures["perf/rollout/batches"], figures["perf/rollout/batch_size/mean"]) == (2.0, 3.0)


def test_guidance_uses_the_negative_prompt(make_engine):
    engine = make_engine()
    plain, ignored, guided, other = (
        generate(engine, [make_request(0, guidance_scale=scale, negative_prompt=negative)])[0]
        for scale, negative in ((1.0, ""), (1.0, "ugly"), (4.0, "ugly"), (4.0, "blurred"))
    )
    assert torch.equal(plain.final_latents, ignored.final_latents)
    assert not torch.equal(plain.final_latents, guided.final_latents)
    assert not torch.equal(guided.final_latents, other.final_latents)
    assert set(plain.conditioning) == {"tokens"}
    assert set(guided.conditioning) == {"tokens", "negative.tokens"}


def test_prompts_are_encoded_once_and_counted(make_engine):
    engine = make_engine()
    generate(engine, [make_request(i) for i in range(8)])
    assert engine._adapter.encoded == ["prompt 0", "prompt 1"]
    figures = engine.statistics()
    assert (figures["perf/rollout/prompt_cache/hits"], figures["perf/rollout/prompt_cache/misses"]) == (6.0, 2.0)
    assert (figures["perf/rollout/requests"], figures["perf/rollout/forwards"]) == (8.0, 4.0)
    generate(engine, [make_request(0, guidance_scale=2.0, negative_prompt="ugly")])
    figures = engine.statistics()
    assert (figures["perf/rollout/prompt_cache/hits"], figures["perf/rollout/prompt_cache/misses"]) == (1.0, 1.0)


def test_the_cache_does_not_change_a_bit(make_engine):
    requests = [make_request(i) for i in range(8)]
    cached, uncached = make_engine(), make_engine(prompt_cache_size=0)
    assert bit_equal(generate(cached, requests), generate(uncached, requests))
    assert len(uncached._adapter.encoded) == 8


@pytest.mark.parametrize("size", [0, 1, 3])
def test_decoding_in_parts_gives_the_same_images(make_engine, size):
    requests = [make_request(i) for i in range(7)]
    whole, parts = make_engine(), make_engine()
    parts._decode_batch_size = size
    for a, b in zip(generate(whole, requests), generate(parts, requests), strict=True):
        assert torch.equal(a.artifacts["image"].data, b.artifacts["image"].data)


def test_tensors_of_a_trajectory_own_their_storage(make_engine):
    for trajectory in generate(make_engine(), [make_request(i) for i in range(4)]):
        tensors = [trajectory.latents, trajectory.final_latents, trajectory.artifacts["image"].data]
        for tensor in tensors:
            assert tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size()


def test_packs_follow_max_num_seqs(make_engine):
    engine = make_engine(max_num_seqs=4)
    trajectories = generate(engine, [make_request(i) for i in range(10)])
    assert [t.batch_size for t in trajectories] == [4] * 8 + [2] * 2
    assert [t.batch_row for t in trajectories] == [0, 1, 2, 3] * 2 + [0, 1]
    assert engine.statistics()["perf/rollout/forwards"] == 3.0 * SCHEDULE.num_steps


def test_a_plan_that_cannot_run_is_refused_before_anything_runs(make_engine):
    engine = make_engine()
    with pytest.raises(ConfigError, match="request 'r1'"):
        asyncio.run(engine.generate([make_request(0), make_request(1, plan=replace(PLAN, stochastic_steps=(9,)))]))
    assert engine._adapter.batches == []
    assert engine.health().in_flight == 0


def test_a_sample_that_is_not_finite_is_named_and_leaves_the_engine_usable(make_engine):
    engine = make_engine()
    original = engine._adapter.velocity

    def broken(latents, *args, **kwargs):
        out = original(latents, *args, **kwargs)
        return torch.where(torch.arange(len(out))[:, None, None, None] == 1, torch.nan, out)

    engine._adapter.velocity = broken
    with pytest.raises(NonFiniteError, match="'r1'"):
        asyncio.run(engine.generate([make_request(0), make_request(1)]))
    assert engine.health().in_flight == 0
    engine._adapter.velocity = original
    assert len(generate(engine, [make_request(1)])) == 1


def test_media_reach_the_encoder_and_unlike_media_are_encoded_separately(make_engine):
    engine = make_engine()
    black, white = (
        {"image": MediaArtifact("image", "image", torch.full((3, 2, 2), v, dtype=torch.uint8), "CHW")} for v in (0, 255)
    )
    trajectories = generate(engine, [make_request(i, media=media) for i, media in enumerate((black, white, black))])
    assert len(engine._adapter.encoded) == 2
    tokens = [t.conditioning["tokens"] for t in trajectories]
    assert torch.equal(tokens[0], tokens[2])
    torch.testing.assert_close(tokens[1] - tokens[0], torch.ones_like(tokens[0]))


@pytest.mark.parametrize("windows", [[(0, 2)], [(0, 2), (1, 2)]])
def test_every_step_draws_its_own_noise(make_engine, windows):
    engine = make_engine()
    requests = [
        make_request(i, plan=replace(PLAN, kind="dance_sde", stochastic_steps=windows[i % len(windows)]))
        for i in range(2)
    ]
    for trajectory in generate(engine, requests):
        for w, step in enumerate(trajectory.step_indices.tolist()):
            with torch.no_grad():
                outcome = transition(
                    engine._adapter,
                    latents=trajectory.latents[w][None],
                    step_index=torch.tensor([step]),
                    schedule=SCHEDULE,
                    kind="dance_sde",
                    noise_level=PLAN.noise_level,
                    conditioning={"tokens": trajectory.conditioning["tokens"][None]},
                    noise=unit_noise([trajectory.request], step, (4, 4, 4)),
                )
            torch.testing.assert_close(outcome.next_latents[0], trajectory.next_latents[w], rtol=0, atol=1e-5)


def test_printing_a_result_does_not_print_its_tensors(make_engine):
    result = asyncio.run(make_engine().generate([make_request(0), make_request(1)]))
    text = repr(result)
    assert "'r0'" in text
    assert "tensor" not in text
    assert len(text) < 400
