"""A vLLM engine of two tensor-parallel workers: it says what one worker and the native engine say."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import Any

import pytest

from omni_backends.sync.processes import mark_of
from omni_portable.contracts.errors import CapabilityError, ConfigError, WeightSyncError
from omni_portable.contracts.lifecycle import EngineState
from tests.support.engines import require_installed
from tests.support.token_models import token_request
from tests.support.vllm_pair import Pair, assert_equal, draw, vllm_setup

require_installed("vllm")


@pytest.fixture(params=["split_pair", "split_lora_pair"])
def pair(request: pytest.FixtureRequest) -> Pair:
    found: Pair = request.getfixturevalue(request.param)
    return found


def test_it_draws_and_holds_what_the_native_engine_does(pair: Pair) -> None:
    assert len(pair.engine.health().detail["processes"]) == 3  # the engine, and two workers
    requests = pair.requests(max_new_tokens=12)
    before = draw(pair.engine, requests)
    for seed in (1, 2):
        pair.update(pair.changed(seed))
        pair.assert_same(requests)
        pair.assert_replayed(requests)
    pair.update(pair.first)
    assert_equal(draw(pair.engine, requests), before)


def test_an_update_that_breaks_off_in_one_worker_is_undone_in_both(pair: Pair) -> None:
    pair.update(pair.changed(3))
    requests, version = pair.requests(4), pair.version
    before, checksums = draw(pair.engine, requests), pair.engine.weights_checksum()
    pair.engine.pause()
    for only in (1, 0):
        answers = pair.engine._host._process.rpc("omni_break_next_update", {"only": only})
        assert [answer["ok"] for answer in answers] == [True, True]
        with pytest.raises(WeightSyncError, match=f"worker {only}, weights_commit: RuntimeError: broken on purpose"):
            pair.engine.update_weights(pair.stream(pair.changed(9)), version + 1)
        assert pair.engine.weights_checksum() == checksums
    assert pair.engine.health().state is EngineState.PAUSED
    pair.engine.resume()
    assert_equal(draw(pair.engine, requests), before)
    pair.update(pair.changed(9))
    pair.assert_same(requests)


def test_weights_that_do_not_fit_are_refused_by_name(pair: Pair) -> None:
    checksums, version = pair.engine.weights_checksum(), pair.version
    for what in ("nan", "shape"):
        wrong = pair.changed(7)
        name = list(wrong)[1]
        if what == "nan":
            wrong[name].view(-1)[-1] = float("nan")
        else:
            wrong[name] = wrong[name][: len(wrong[name]) // 2]  # a worker's part is no update
        pair.engine.pause()
        with pytest.raises(WeightSyncError, match=name.replace(".", r"\.")):
            pair.engine.update_weights(pair.stream(wrong), version + 1)
        pair.engine.resume()
    assert pair.engine.weights_checksum() == checksums


def test_a_killed_worker_is_named_and_the_engine_is_restarted_with_its_weights(split_pair: Pair) -> None:
    split_pair.update(split_pair.changed(11))
    core, *workers = split_pair.engine.health().detail["processes"]
    marks = [mark_of(process) for process in (core, *workers)]
    long: dict[str, Any] = {"max_new_tokens": 300, "prompt": "go on", "temperature": 5.0}
    requests = [token_request(i, **long) for i in range(3)]

    async def killed() -> Any:
        split_pair.engine.statistics()
        task = asyncio.ensure_future(split_pair.engine.generate(requests))
        while not split_pair.engine._host.batches():
            await asyncio.sleep(0.05)
        os.kill(workers[1], signal.SIGKILL)
        return await task

    result = asyncio.run(killed())
    assert_equal(list(result.trajectories), draw(split_pair.native, requests))
    assert split_pair.engine.statistics()["perf/rollout/restarts"] == 1
    assert not any(mark.alive for mark in marks)
    split_pair.assert_same(split_pair.requests(4))


def test_heads_that_workers_cannot_share_are_refused_before_anything_starts() -> None:
    from omni_backends.rollout.vllm.engine import VllmEngine

    with pytest.raises(CapabilityError, match=r"tensor_parallel_size=3 does not share out 4 attention heads and 2 key"):
        VllmEngine(vllm_setup("qwen3", tensor_parallel_size=3))
    with pytest.raises(CapabilityError, match="a mixture of experts is served by one worker"):
        VllmEngine(vllm_setup("qwen3_omni", tensor_parallel_size=2))
    with pytest.raises(ConfigError, match="tensor_parallel_size=0"):
        VllmEngine(vllm_setup("qwen3", tensor_parallel_size=0))
