import asyncio
import threading

import pytest
import torch

from omni_portable.contracts.errors import LifecycleError
from omni_portable.contracts.lifecycle import EngineState
from tests.support.requests import SCHEDULE, make_request
from tests.support.trajectories import bit_equal

REQUESTS = [make_request(i) for i in range(4)]


def generate(engine, requests=REQUESTS):
    return asyncio.run(engine.generate(requests)).trajectories


async def during(engine, action, forwards, requests=REQUESTS):
    """Start a rollout, call `action` after that many forwards, and return (result, what action returned)."""
    task = asyncio.create_task(engine.generate(requests))
    while len(engine._adapter.batches) < forwards:
        await asyncio.sleep(0)
    answer = action()
    return await task, answer


def test_abort_mid_denoise_discards_the_named_and_leaves_the_others_bit_equal(make_engine):
    engine = make_engine()
    undisturbed = generate(engine)
    engine._adapter.batches.clear()
    result, ack = asyncio.run(during(engine, lambda: engine.abort(["r1", "r3", "gone"]), 2))
    assert ack.aborted == result.aborted == ("r1", "r3")
    assert [t.request.request_id for t in result.trajectories] == ["r0", "r2"]
    assert bit_equal(result.trajectories, [undisturbed[0], undisturbed[2]])
    assert engine.statistics()["perf/rollout/aborted"] == 2.0


def test_abort_of_all_stops_the_computation(make_engine):
    engine = make_engine()
    result, ack = asyncio.run(during(engine, engine.abort, 2))
    assert ack.aborted == result.aborted == ("r0", "r1", "r2", "r3")
    assert result.trajectories == []
    assert len(engine._adapter.batches) == 2 < SCHEDULE.num_steps
    assert engine.health().state is EngineState.RUNNING


def test_requests_of_a_later_pack_may_be_aborted_before_it_starts(make_engine):
    engine = make_engine(max_num_seqs=2)
    result, _ = asyncio.run(during(engine, lambda: engine.abort(["r2"]), 1))
    assert [t.request.request_id for t in result.trajectories] == ["r0", "r1", "r3"]
    assert [t.batch_size for t in result.trajectories] == [2, 2, 1]


def test_pause_mid_denoise_reports_what_it_aborted(make_engine):
    engine = make_engine(max_num_seqs=2)

    def pause():
        before = engine.health()
        return before, engine.pause(), engine.health()

    result, (before, ack, after) = asyncio.run(during(engine, pause, SCHEDULE.num_steps + 1))
    # the first pack was finished, the second under way
    assert [t.request.request_id for t in result.trajectories] == ["r0", "r1"]
    assert ack.aborted == result.aborted == ("r2", "r3")
    assert "2 requests" in ack.detail
    assert (before.state, before.in_flight) == (EngineState.RUNNING, 2)
    assert (after.state, after.in_flight) == (EngineState.PAUSED, 0)
    assert len(engine._adapter.batches) == SCHEDULE.num_steps + 1


def test_after_pause_and_resume_an_old_rollout_stays_aborted(make_engine):
    engine = make_engine()

    def pause_and_go_on():
        engine.pause()
        engine.resume()

    async def scenario():
        result, _ = await during(engine, pause_and_go_on, 2)
        again = await engine.generate(REQUESTS)
        return result, again

    result, again = asyncio.run(scenario())
    assert (result.trajectories, len(result.aborted)) == ([], 4)
    assert (len(again.trajectories), again.aborted) == (4, ())


def test_concurrent_rollouts_do_not_disturb_each_other(make_engine):
    engine = make_engine()
    others = [make_request(i) for i in range(4, 8)]
    expected = generate(engine), generate(engine, others)

    async def both():
        return await asyncio.gather(engine.generate(REQUESTS), engine.generate(others))

    for result, wanted in zip(asyncio.run(both()), expected, strict=True):
        assert bit_equal(result.trajectories, wanted)


def test_an_id_in_flight_is_refused_and_a_cancelled_task_frees_its_ids(make_engine):
    engine = make_engine()

    async def scenario():
        task = asyncio.create_task(engine.generate(REQUESTS))
        await asyncio.sleep(0)
        with pytest.raises(LifecycleError, match="in flight already"):
            await engine.generate([REQUESTS[2]])
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return engine.health().in_flight

    assert asyncio.run(scenario()) == 0
    assert len(generate(engine)) == 4


def test_pause_from_another_thread_waits_for_the_present_step(make_engine):
    engine = make_engine()
    entered, leave = threading.Event(), threading.Event()
    original = engine._adapter.velocity

    def slow(*args, **kwargs):
        entered.set()
        assert leave.wait(10)
        return original(*args, **kwargs)

    engine._adapter.velocity = slow
    results, acks = [], []
    roll = threading.Thread(target=lambda: results.append(asyncio.run(engine.generate(REQUESTS))))
    stop = threading.Thread(target=lambda: acks.append(engine.pause()))
    roll.start()
    assert entered.wait(10)
    stop.start()
    stop.join(0.05)
    assert stop.is_alive()
    assert engine.health().state is EngineState.RUNNING
    leave.set()
    stop.join(10)
    roll.join(10)
    assert len(acks[0].aborted) == 4
    assert results[0].trajectories == []


ILLEGAL = {
    "generate paused": (["pause"], "generate"),
    "generate asleep": (["pause", "sleep"], "generate"),
    "pause paused": (["pause"], "pause"),
    "pause asleep": (["pause", "sleep"], "pause"),
    "resume running": ([], "resume"),
    "resume asleep": (["pause", "sleep"], "resume"),
    "sleep running": ([], "sleep"),
    "sleep asleep": (["pause", "sleep"], "sleep"),
    "wake running": ([], "wake"),
    "wake paused": (["pause"], "wake"),
    "update running": ([], "update_weights"),
    "update asleep": (["pause", "sleep"], "update_weights"),
    "checksum asleep": (["pause", "sleep"], "weights_checksum"),
    "resume without weights": (["pause", "sleep 2", "wake"], "resume"),
    "checksum without weights": (["pause", "sleep 2", "wake"], "weights_checksum"),
}


def call(engine, step, stream):
    operation, _, level = step.partition(" ")
    if operation == "generate":
        return generate(engine)
    if operation == "update_weights":
        return engine.update_weights(stream, 1)
    return getattr(engine, operation)(*([int(level)] if level else []))


@pytest.mark.parametrize("case", ILLEGAL)
def test_illegal_transitions_raise_and_change_nothing(make_engine, new_weights, case):
    steps, operation = ILLEGAL[case]
    engine = make_engine()
    stream = new_weights(engine)
    for step in steps:
        call(engine, step, stream)
    before = engine.health()
    with pytest.raises(LifecycleError) as caught:
        call(engine, operation, stream)
    assert f"'native' is {before.state.value}" in str(caught.value)
    assert f"cannot {operation}" in str(caught.value)
    assert caught.value.choices == before.detail["legal"]
    assert engine.health() == before


@pytest.mark.parametrize("lora_rank", [0, 4])
def test_sleep_and_wake_restore_bit_for_bit_three_times(make_engine, new_weights, lora_rank):
    engine = make_engine(lora_rank=lora_rank)
    engine.pause()
    engine.update_weights(new_weights(engine), 1)
    engine.resume()
    expected, checksums = generate(engine), engine.weights_checksum()
    for _ in range(3):
        engine.pause()
        slept = engine.sleep(1)
        assert engine.health().state is EngineState.ASLEEP
        woken = engine.wake()
        assert (slept.operation, woken.operation) == ("sleep", "wake")
        assert slept.policy_version == woken.policy_version == 1
        engine.resume()
        assert engine.weights_checksum() == checksums
        assert bit_equal(generate(engine), expected)


@pytest.mark.parametrize("lora_rank", [0, 4])
def test_after_level_2_an_update_brings_everything_back(make_engine, new_weights, lora_rank):
    engine, twin = make_engine(lora_rank=lora_rank), make_engine(lora_rank=lora_rank)
    stream, same = new_weights(engine), new_weights(engine)
    twin.pause()
    twin.update_weights(same, 1)
    twin.resume()
    engine.pause()
    engine.sleep(2)
    held = [p for p in engine._adapter.transformer.parameters() if p.untyped_storage().nbytes()]
    assert held == []
    engine.wake()
    engine.update_weights(stream, 1)
    engine.resume()
    assert engine.weights_checksum() == twin.weights_checksum()
    assert bit_equal(generate(engine), generate(twin))
    assert torch.equal(engine._adapter.transformer.frequencies, twin._adapter.transformer.frequencies)


def test_unknown_levels_and_tags_are_refused_before_anything_sleeps(make_engine):
    engine = make_engine()
    engine.pause()
    with pytest.raises(LifecycleError, match="level 3"):
        engine.sleep(3)
    engine.sleep(1)
    with pytest.raises(LifecycleError, match="kv_cache"):
        engine.wake(("kv_cache",))
    engine.wake()
    engine.resume()
    assert len(generate(engine)) == 4


class FailingPool:
    """A real pool whose `sleep` fails, before or after it released the memory."""

    def __init__(self, pool, *, released):
        self.pool, self.released = pool, released

    def sleep(self, level, tags):
        if self.released:
            self.pool.sleep(level, tags)
        raise LifecycleError("too little memory was freed")

    def wake(self, tags):
        return self.pool.wake(tags)


@pytest.mark.parametrize("level", [1, 2])
@pytest.mark.parametrize("released", [False, True])
def test_a_failed_sleep_leaves_the_engine_paused_and_awake(make_engine, new_weights, level, released):
    engine = make_engine()
    expected, stream = generate(engine), new_weights(engine)
    engine.pause()
    pool = engine._pool
    engine._pool = FailingPool(pool, released=released)
    with pytest.raises(LifecycleError, match="too little memory"):
        engine.sleep(level)
    engine._pool = pool
    assert engine.health().state is EngineState.PAUSED
    if released and level == 2:
        with pytest.raises(LifecycleError, match="without weights"):
            engine.resume()
        engine.update_weights(stream, 1)
        engine.resume()
        assert not bit_equal(generate(engine), expected)
    else:
        engine.resume()
        assert bit_equal(generate(engine), expected)
