"""The lifecycle of a vLLM engine, aborts that keep what was said, and requests that vLLM cannot take."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import torch

from omni_portable.contracts.errors import CapabilityError, ConfigError, LifecycleError
from omni_portable.contracts.lifecycle import EngineState
from omni_portable.contracts.rollout import RolloutEngine, RolloutResult
from tests.support.engines import require_installed
from tests.support.token_models import token_request, video
from tests.support.vllm_pair import Pair, draw

require_installed("vllm")

LONG: dict[str, Any] = {"max_new_tokens": 300, "prompt": "go on", "temperature": 5.0}


async def _interrupted(pair: Pair, interrupt: Any) -> tuple[RolloutResult, Any]:
    """Start long requests, interrupt them once some tokens are there."""
    requests = [token_request(i, **LONG) for i in range(3)]
    pair.engine.statistics()
    task = asyncio.ensure_future(pair.engine.generate(requests))
    steps = 0
    while steps < 5 and not task.done():
        await asyncio.sleep(0.02)
        steps += len(pair.engine._host.batches())
    ack = interrupt(pair.engine)
    return await task, ack


def test_it_is_a_rollout_engine_that_says_what_it_runs(text_pair: Pair) -> None:
    assert isinstance(text_pair.engine, RolloutEngine)
    health = text_pair.engine.health()
    assert health.detail["alive"]
    assert health.detail["processes"]
    assert health.detail["vllm"].startswith("0.30")


def test_an_aborted_request_keeps_what_it_had_said(text_pair: Pair) -> None:
    result, ack = asyncio.run(_interrupted(text_pair, lambda engine: engine.abort(["r1", "unknown"])))
    assert ack.aborted == result.aborted == ("r1",)
    assert [t.request.request_id for t in result.trajectories] == ["r0", "r2"]
    partial = result.partials["r1"]
    said = len(partial.response_ids)
    assert 0 < said < 300
    (whole,) = draw(text_pair.engine, [token_request(1, **LONG)])
    assert whole.response_ids[:said].tolist() == partial.response_ids.tolist()
    torch.testing.assert_close(whole.log_probs[:said], partial.log_probs, atol=1e-5, rtol=0)
    assert partial.policy_versions.tolist() == [text_pair.version] * said


def test_an_interrupted_response_goes_on_under_new_weights(text_pair: Pair) -> None:
    """Its tokens, seeds and limits are those of one response; each token knows the weights that drew it."""
    (whole,) = draw(text_pair.engine, [token_request(1, **LONG)])
    result, _ = asyncio.run(_interrupted(text_pair, lambda engine: engine.pause()))
    partial, old = result.partials["r1"], text_pair.version
    text_pair.engine.resume()
    (same,) = draw(text_pair.engine, [token_request(1, **LONG, prefix=partial)])
    assert same.response_ids.tolist() == whole.response_ids.tolist()
    assert (same.finish_reason, same.policy_versions) == (whole.finish_reason, None)
    assert torch.equal(same.log_probs[: partial.length], partial.log_probs)
    text_pair.update(text_pair.changed(3))
    (ours, natives) = text_pair.both([token_request(1, **LONG, prefix=partial)])
    assert ours[0].response_ids[: partial.length].tolist() == partial.response_ids.tolist()
    assert ours[0].response_ids.tolist() == natives[0].response_ids.tolist()
    assert ours[0].length <= LONG["max_new_tokens"]
    assert ours[0].policy_versions is not None
    wanted = [old] * partial.length + [text_pair.version] * (ours[0].length - partial.length)
    assert ours[0].policy_versions.tolist() == wanted
    assert ours[0].policy_version == old


def test_pausing_aborts_and_refuses_until_it_resumes(text_pair: Pair) -> None:
    result, ack = asyncio.run(_interrupted(text_pair, lambda engine: engine.pause()))
    assert set(ack.aborted) == set(result.aborted) == {"r0", "r1", "r2"}
    assert text_pair.engine.health().state is EngineState.PAUSED
    with pytest.raises(LifecycleError, match="paused"):
        draw(text_pair.engine, text_pair.requests(1))
    text_pair.engine.resume()
    text_pair.assert_same(text_pair.requests(2))


def test_sleep_is_refused_where_nothing_would_be_released(text_pair: Pair) -> None:
    text_pair.engine.pause()
    with pytest.raises(LifecycleError, match="releases nothing"):
        text_pair.engine.sleep(1)
    with pytest.raises(LifecycleError, match="level 3"):
        text_pair.engine.sleep(3)
    with pytest.raises(LifecycleError, match="releases nothing"):
        text_pair.engine.sleep(2)
    with pytest.raises(LifecycleError, match="wake"):
        text_pair.engine.wake(("weights", "kv_cache"))
    assert text_pair.engine.health().state is EngineState.PAUSED


def test_requests_that_do_not_fit_are_refused_by_name(text_pair: Pair, omni_pair: Pair) -> None:
    with pytest.raises(ConfigError, match=r"(?s)'r7'.*max_model_len"):
        draw(text_pair.engine, [token_request(7, max_new_tokens=600)])
    with pytest.raises(CapabilityError, match=r"'r8' has video 'clip'"):
        draw(omni_pair.engine, [token_request(8, prompt="see", media={"clip": video()})])
    with pytest.raises(LifecycleError, match="twice"):
        draw(text_pair.engine, [token_request(1), token_request(1)])
    assert text_pair.engine.health().in_flight == 0
