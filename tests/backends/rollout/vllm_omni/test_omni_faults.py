"""Aborts, lifecycle, weight updates that must not arrive, and a worker that dies."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from dataclasses import replace

import pytest
import torch

from omni_backends.rollout.vllm_omni.engine import VllmOmniEngine
from omni_portable.contracts.errors import ConfigError, LifecycleError, NonFiniteError, WeightSyncError
from omni_portable.contracts.lifecycle import EngineState
from omni_portable.contracts.rollout import SamplingPlan
from omni_portable.models.weights import make_stream
from tests.backends.rollout.vllm_omni.drawing import largest_gap
from tests.support.engines import require_installed
from tests.support.sync_target import holders
from tests.support.trajectories import bit_equal

require_installed("vllm", "vllm_omni")

LONG = 4000
"""Denoising steps of a request that is not meant to finish."""
STEPWISE = (("step_execution", True),)


async def under_way(pair, requests):
    """A running `generate` whose requests compute (the engine answers questions between batches only)."""
    task = asyncio.create_task(pair.engine.generate(requests))
    await asyncio.sleep(0.5)
    assert not task.done()
    return task


def pair_of(engine_pair, stepwise):
    return engine_pair("sd3", lora=0, options=STEPWISE) if stepwise else engine_pair("sd3")


@pytest.mark.parametrize("stepwise", [False, True])
def test_pause_aborts_what_is_in_flight_and_nothing_computes_afterwards(engine_pair, stepwise):
    pair = pair_of(engine_pair, stepwise)
    requests = pair.requests(4, steps=LONG, plan=SamplingPlan())
    pair.engine.statistics()

    async def scenario():
        task = await under_way(pair, requests)
        assert pair.engine.health().in_flight == 4
        ack = await asyncio.to_thread(pair.engine.pause)
        assert set(ack.aborted) == {r.request_id for r in requests}
        assert 0 < pair.engine.statistics()["perf/rollout/forwards"] < LONG
        await asyncio.sleep(0.3)
        assert pair.engine.statistics()["perf/rollout/forwards"] == 0
        return await task

    result = asyncio.run(scenario())
    assert result.trajectories == []
    assert set(result.aborted) == {r.request_id for r in requests}
    assert pair.engine.health().state is EngineState.PAUSED
    with pytest.raises(LifecycleError, match="is paused and cannot generate"):
        asyncio.run(pair.engine.generate(requests[:1]))
    pair.engine.resume()
    assert len(pair.draw(pair.requests(4))) == 4


@pytest.mark.parametrize("stepwise", [False, True])
def test_an_aborted_request_does_not_disturb_the_others(engine_pair, stepwise):
    pair = pair_of(engine_pair, stepwise)
    requests = pair.requests(4, steps=300, plan=SamplingPlan())
    whole = pair.draw(requests)

    async def scenario():
        task = await under_way(pair, requests)
        pair.engine.abort(["r1", "unknown"])
        return await task

    result = asyncio.run(scenario())
    assert result.aborted == ("r1",)
    assert [t.request.request_id for t in result.trajectories] == ["r0", "r2", "r3"]
    others = [whole[0], whole[2], whole[3]]
    assert largest_gap(result.trajectories, others) <= 1e-5


def test_sleep_and_wake_keep_the_policy_and_illegal_moves_are_named(engine_pair):
    pair = engine_pair("sd3")
    requests = pair.requests(4)
    before = pair.draw(requests)
    with pytest.raises(LifecycleError, match="cannot sleep now"):
        pair.engine.sleep(1)
    pair.engine.pause()
    with pytest.raises(LifecycleError, match="cannot wake after it"):
        pair.engine.sleep(2)
    with pytest.raises(LifecycleError, match="sleep at level 3"):
        pair.engine.sleep(3)
    assert pair.engine.health().state is EngineState.PAUSED
    ack = pair.engine.sleep(1)
    assert ack.bytes >= 0  # a tiny model's pages may be shared with what stays
    for illegal in (lambda: pair.engine.resume(), lambda: pair.engine.update_weights(pair.stream(), 99)):
        with pytest.raises(LifecycleError, match="is asleep and cannot"):
            illegal()
    with pytest.raises(LifecycleError, match="not asleep"):
        pair.engine.wake(("kv_cache",))
    pair.engine.wake()
    pair.engine.resume()
    assert bit_equal(before, pair.draw(requests))


def broken_streams(pair):
    stream = pair.actor.weights()
    tensors = {name: tensor.clone() for name, tensor in stream}
    first = next(iter(tensors))
    nan = {name: tensor.clone() for name, tensor in tensors.items()}
    nan[first].view(-1)[0] = float("nan")
    other = {f"other.{name}": tensor for name, tensor in tensors.items()}
    renamed = {("gone" + name if name == first else name): tensor for name, tensor in tensors.items()}
    wider = tensors | {first: torch.zeros(tensors[first].shape[0] + 1, *tensors[first].shape[1:])}
    info = stream.manifest.lora
    broader = tensors | {first: torch.zeros(*tensors[first].shape[:-1], tensors[first].shape[-1] + 1)}
    made = {"nan": nan, "name": renamed, "shape": wider, "width": broader, "nothing": other}
    streams = {what: make_stream(stream.manifest.mode, found.items(), info) for what, found in made.items()}
    if info is not None:
        scaled = replace(info, alpha=info.alpha * 2)
        streams["scale"] = make_stream("adapter", tensors.items(), scaled)
    half = {name: tensor.to(torch.bfloat16) for name, tensor in tensors.items()}
    streams["dtype"] = make_stream(stream.manifest.mode, half.items(), info)
    return streams


SAID = {
    "nan": "not finite",
    "name": "lacks tensor|no pairs of LoRA matrices",
    "shape": r"the rollout engine's is|another rank",
    "width": r"the rollout engine's is",
    "nothing": "lacks tensor|has no layer|holds no tensor",
    "scale": "was configured with",
    "dtype": "bfloat16",
}
"""Fault -> what its error says, among other things."""


@pytest.mark.parametrize("stepwise", [False, True], ids=["lora", "full"])
def test_an_update_that_does_not_fit_leaves_the_old_policy_and_the_engine_paused(engine_pair, stepwise):
    pair = pair_of(engine_pair, stepwise)
    pair.sync()
    requests, version = pair.requests(4), pair.engine.health().policy_version
    before, held = pair.draw(requests), pair.engine.weights_checksum()
    with pytest.raises(LifecycleError, match="is running and cannot update_weights"):
        pair.engine.update_weights(pair.stream(), version + 1)
    pair.engine.pause()
    for what, stream in broken_streams(pair).items():
        with pytest.raises(WeightSyncError, match=SAID[what]):
            pair.engine.update_weights(stream, version + 1)
        assert pair.engine.health().state is EngineState.PAUSED, what
        assert pair.engine.health().policy_version == version, what
        assert pair.engine.weights_checksum() == held, what
    with pytest.raises(WeightSyncError, match=f"was sent version {version}"):
        pair.engine.update_weights(pair.stream(), version)
    pair.engine.resume()
    gap = largest_gap(before, pair.draw(requests))
    assert gap <= 1e-5 if stepwise else gap == 0.0  # batches of single steps depend on arrivals, and shapes on them


def moved(pair):
    """Other weights than the actor's."""
    return pair.stream(**{name: tensor + 0.25 for name, tensor in pair.actor.weights()})


@pytest.mark.parametrize("stepwise", [False, True], ids=["lora", "full"])
def test_an_update_that_other_replicas_could_not_take_is_taken_back(engine_pair, stepwise):
    pair = pair_of(engine_pair, stepwise)
    pair.sync()
    version, held = pair.engine.health().policy_version, pair.engine.weights_checksum()
    pair.engine.pause()
    pair.engine.update_weights(moved(pair), version + 1)
    ack = pair.engine.recall_weights(version)
    assert (ack.ok, ack.policy_version) == (True, version)
    assert pair.engine.weights_checksum() == held
    pair.engine.update_weights(moved(pair), version + 1)
    pair.engine.resume()
    pair.engine.pause()
    assert not pair.engine.recall_weights(version).ok, "everybody had it: nobody goes back"
    with pytest.raises(LifecycleError, match=f"version {version + 1}, which was recalled and cannot resume"):
        pair.engine.resume()
    assert pair.engine.update_weights(pair.stream(), version).policy_version == version
    assert pair.engine.weights_checksum() == held
    pair.engine.resume()


def test_two_updates_at_once_are_refused(engine_pair):
    pair = engine_pair("sd3")
    pair.engine.pause()
    version = pair.engine.health().policy_version + 1
    entered, leave = threading.Event(), threading.Event()

    class Slow:
        def __init__(self, stream):
            self.manifest, self._stream = stream.manifest, stream

        def __iter__(self):
            entered.set()
            leave.wait(30)
            yield from self._stream

    worker = threading.Thread(target=lambda: pair.engine.update_weights(Slow(pair.stream()), version))
    worker.start()
    assert entered.wait(30)
    with pytest.raises(WeightSyncError, match="another weight update"):
        pair.engine.update_weights(pair.stream(), version)
    leave.set()
    worker.join(60)
    assert pair.engine.health().policy_version == version


def test_requests_that_cannot_be_carried_out_are_refused_before_the_engine_sees_them(engine_pair):
    pair = engine_pair("sd3")
    request = pair.requests(1)[0]
    with pytest.raises(ConfigError, match="stochastic steps"):
        pair.draw([replace(request, plan=SamplingPlan("sde", 0.7, (9,)))])
    with pytest.raises(LifecycleError, match="given twice"):
        pair.draw([request, request])
    with pytest.raises(ConfigError, match="rollout.height"):
        pair.draw([replace(request, height=63)])
    assert pair.engine.health().in_flight == 0


@pytest.mark.parametrize("stepwise", [False, True], ids=["lora", "full"])
def test_a_process_that_dies_is_started_again_once_with_the_last_weights(engine_pair, stepwise):
    pair = pair_of(engine_pair, stepwise)
    pair.move()
    pair.sync()
    requests = pair.requests(4, steps=300, plan=SamplingPlan())
    before, held = pair.draw(requests), pair.engine.weights_checksum()

    async def scenario():
        task = await under_way(pair, requests)
        os.kill(pair.engine.health().detail["process"], signal.SIGKILL)
        return await task

    result = asyncio.run(scenario())
    assert largest_gap(result.trajectories, before) <= (1e-5 if stepwise else 0.0)
    assert pair.engine.weights_checksum() == held
    assert pair.engine.statistics()["perf/rollout/restarts"] == 1


@pytest.mark.parametrize("stepwise", [False, True], ids=["lora", "full"])
def test_a_process_that_dies_in_an_update_is_started_again_with_the_last_weights(engine_pair, stepwise):
    pair = pair_of(engine_pair, stepwise)
    pair.move()
    pair.sync()
    version, held = pair.engine.health().policy_version, pair.engine.weights_checksum()
    process = pair.engine.health().detail["process"]
    pair.engine.pause()

    class Deadly:
        def __init__(self, stream):
            self.manifest, self._stream = stream.manifest, stream

        def __iter__(self):
            os.kill(process, signal.SIGKILL)
            yield from self._stream

    pair.move()
    with pytest.raises(WeightSyncError, match=rf"process {process} .*killed by SIGKILL"):
        pair.engine.update_weights(Deadly(pair.stream()), version + 1)
    assert pair.engine.health().state is EngineState.PAUSED
    assert not pair.engine.health().detail["alive"], "its replica may be replaced instead"
    assert pair.engine.weights_checksum() == held
    assert pair.engine.health().detail["alive"]
    assert pair.sync() == version + 1
    assert len(pair.draw(pair.requests(2))) == 2


def test_full_updates_go_through_the_same_memory(engine_pair):
    pair = pair_of(engine_pair, True)
    used = []
    for _ in range(4):
        pair.move()
        pair.sync()
        segments = pair.engine._host._updates.channel._segments
        used.append({segment.describe()["inode"] for segment in segments if segment is not None})
        assert pair.engine.weights_checksum() == pair.native.weights_checksum()
    assert used[-1] == used[-2]
    assert len(used[-1]) == 2
    worker = pair.engine.health().detail["process"]
    assert all(holders(inode) == {os.getpid(), worker} for inode in used[-1])


def test_a_process_that_died_between_calls_hangs_nobody_and_is_started_by_the_next_that_draws(engine_pair):
    pair = engine_pair("sd3")
    process = pair.engine.health().detail["process"]
    os.kill(process, signal.SIGKILL)
    started = time.monotonic()
    pair.engine.pause()
    assert time.monotonic() - started < 30
    assert not pair.engine.health().detail["alive"]
    pair.engine.resume()
    assert len(pair.draw(pair.requests(2))) == 2
    assert pair.engine.health().detail["process"] != process


def test_samples_that_are_not_finite_name_their_request(engine_pair):
    pair = engine_pair("sd3")
    request = replace(pair.requests(1)[0], guidance_scale=1e38)
    with pytest.raises(NonFiniteError, match="request 'r0'"):
        pair.draw([request])


def test_an_engine_that_does_not_start_in_time_says_so(engine_pair):
    pair = engine_pair("sd3")
    setup = replace(pair.setup, load=replace(pair.setup.load, path=pair.setup.load.path))
    setup.config.rollout.options = {"start_timeout_s": 0.001}
    try:
        with pytest.raises(LifecycleError, match="did not start"):
            VllmOmniEngine(setup)
    finally:
        setup.config.rollout.options = {}
