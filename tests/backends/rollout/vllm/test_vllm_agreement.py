"""vLLM, the native engine and an actor's replay agree, whatever a request is batched with."""

from __future__ import annotations

import pytest

from tests.support.engines import require_installed
from tests.support.token_models import token_request
from tests.support.vllm_pair import Pair, assert_equal, draw

require_installed("vllm")


@pytest.mark.parametrize("temperature", [1.0, 0.6, 0.0])
def test_requests_draw_what_the_native_engine_draws(text_pair: Pair, temperature: float) -> None:
    text_pair.assert_same(text_pair.requests(temperature=temperature, max_new_tokens=12))


def test_truncated_sampling_is_the_native_one_and_log_probs_are_not_truncated(text_pair: Pair) -> None:
    text_pair.assert_same(text_pair.requests(top_k=5, top_p=0.8))


def test_lora_and_experts_with_pictures_and_sounds_agree(lora_pair: Pair, omni_pair: Pair) -> None:
    lora_pair.update(lora_pair.changed(3))
    lora_pair.assert_same(lora_pair.requests())
    requests = omni_pair.requests(10)
    assert {a.modality for r in requests for a in r.media.values()} == {"image", "audio"}
    omni_pair.assert_same(requests)


@pytest.mark.parametrize("which", ["text_pair", "omni_pair"])
def test_an_actor_replays_the_same_log_probs(which: str, request: pytest.FixtureRequest) -> None:
    pair: Pair = request.getfixturevalue(which)
    pair.assert_replayed(pair.requests(temperature=0.7, max_new_tokens=12))


def test_a_request_draws_the_same_alone_with_others_and_in_another_order(text_pair: Pair, omni_pair: Pair) -> None:
    for pair in (text_pair, omni_pair):
        requests = pair.requests(8)
        together = draw(pair.engine, requests)
        assert_equal([together[3]], draw(pair.engine, [requests[3]]))
        assert_equal(together[::-1], draw(pair.engine, requests[::-1]))
        assert_equal(together, draw(pair.engine, requests))


def test_stop_texts_and_end_tokens_end_a_response_as_in_the_native_engine(text_pair: Pair) -> None:
    requests = text_pair.requests(2, max_new_tokens=24)
    texts = [str(t.artifacts["response"].data) for t in draw(text_pair.native, requests)]
    stop = tuple(text[len(text) // 2] for text in texts)
    asked = [token_request(i, prompt=r.prompt, max_new_tokens=24, stop=stop) for i, r in enumerate(requests)]
    text_pair.assert_same(asked)
    assert "stop" in {t.finish_reason for t in draw(text_pair.engine, asked)}


def test_vllm_fills_its_batch(text_pair: Pair) -> None:
    text_pair.engine.statistics()
    draw(text_pair.engine, text_pair.requests(8, max_new_tokens=16, temperature=2.0))
    figures = text_pair.engine.statistics()
    assert figures["perf/rollout/batch_size/max"] == 8
    assert figures["perf/rollout/requests"] == 8
    assert figures["perf/rollout/tokens"] > 8
