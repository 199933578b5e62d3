"""The native engine of autoregressive models: what a response depends on, how it ends, and the lifecycle around it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from omni_backends.rollout.native.kinds import native_engine
from omni_backends.rollout.native_tokens.engine import NativeTokenEngine
from omni_portable.contracts.errors import ConfigError, LifecycleError, NonFiniteError
from omni_portable.contracts.rollout import RolloutEngine
from omni_portable.contracts.tokens import TokenTrajectory
from omni_portable.models.weights import make_stream
from tests.support.engines import make_setup
from tests.support.token_models import FAMILIES, folder, prompts, token_request


def build(name: str = "qwen3", **changes: Any) -> NativeTokenEngine:
    return NativeTokenEngine(make_setup(name.partition("/")[0], folder(name), **({"max_num_seqs": 4} | changes)))


def draw(engine: NativeTokenEngine, requests: Sequence[Any]) -> list[TokenTrajectory]:
    return list(asyncio.run(engine.generate(requests)).trajectories)


def requests(count: int = 6, **changes: Any) -> list[Any]:
    return [token_request(i, **changes) for i in range(count)]


def changed(engine: NativeTokenEngine, change: float = 0.05) -> Any:
    tensors = {
        name: tensor.detach() + change * torch.randn(tensor.shape, generator=torch.Generator().manual_seed(i))
        for i, (name, tensor) in enumerate(engine._weights._tensors().items())
    }
    return make_stream("adapter", tensors.items(), engine._weights._lora)


def test_native_is_one_name_for_both_kinds_of_model() -> None:
    setup = make_setup("qwen3", folder("qwen3"))
    engine = native_engine(setup)
    assert isinstance(engine, NativeTokenEngine)
    assert isinstance(engine, RolloutEngine)
    setup.config.rollout.options = {"decode_batch_size": 2}
    with pytest.raises(ConfigError, match="decode_batch_size"):
        native_engine(setup)


@pytest.mark.parametrize("family", FAMILIES)
def test_responses_come_in_order_whole_and_scored(family: str) -> None:
    engine = build(family)
    asked = [token_request(i, prompt=p, media=m, max_new_tokens=3 + i) for i, (p, m) in enumerate(prompts(family))]
    found = draw(engine, asked)
    assert [t.request for t in found] == asked
    for index, t in enumerate(found):
        assert 1 <= t.length <= 3 + index
        assert (t.batch_size, t.batch_row) == (min(4, len(asked) - index // 4 * 4), index % 4)
        assert (t.log_probs - t.sampled_log_probs).abs().max() < 1e-5
        ended = int(t.response_ids[-1]) in engine._adapter.end_ids
        assert t.finish_reason == ("stop" if ended else "length")
        assert t.artifacts["response"].data == engine._adapter.read_response(t.response_ids.tolist())["response"].data
        assert t.engine == "native"


def test_a_request_draws_the_same_whatever_it_is_packed_with() -> None:
    together = draw(build(max_num_seqs=8), requests(8))
    apart = draw(build(max_num_seqs=3), requests(8))
    alone = [draw(build(), [request])[0] for request in requests(8)[:3]]
    for left, right in zip(together, [*alone, *apart[3:]], strict=True):
        assert torch.equal(left.response_ids, right.response_ids)
        torch.testing.assert_close(left.log_probs, right.log_probs, atol=1e-5, rtol=0)
    again = draw(build(max_num_seqs=8), requests(8))
    assert all(torch.equal(a.log_probs, b.log_probs) for a, b in zip(together, again, strict=True))


def test_samples_of_a_prompt_differ_and_greedy_ones_do_not() -> None:
    engine = build()
    drawn = draw(engine, [token_request(i, group_id="g", prompt_id="p", prompt="x", sample_index=i) for i in range(4)])
    assert len({tuple(t.response_ids.tolist()) for t in drawn}) == 4
    greedy = draw(engine, [token_request(i, prompt="x", sample_index=i, temperature=0.0) for i in range(4)])
    assert len({tuple(t.response_ids.tolist()) for t in greedy}) == 1


def test_requests_of_other_settings_do_not_share_a_pack() -> None:
    mixed = [token_request(i, temperature=(1.0, 0.5)[i % 2]) for i in range(4)]
    found = draw(build(), mixed)
    assert [t.batch_size for t in found] == [2, 2, 2, 2]
    assert [t.batch_row for t in found] == [0, 0, 1, 1]
    statistics = build()
    draw(statistics, requests(5, max_new_tokens=1))
    figures = statistics.statistics()
    assert figures["perf/rollout/batches"] == 2
    assert figures["perf/rollout/tokens"] == 5
    assert figures["perf/rollout/forwards"] == 4  # a token and a score for each pack


def test_stop_texts_end_a_response_and_are_cut_off() -> None:
    engine = build()
    (free,) = draw(engine, [token_request(max_new_tokens=12)])
    text = str(free.artifacts["response"].data)
    stop = next(c for c in text[1:] if c != "\ufffd")
    (cut,) = draw(engine, [token_request(max_new_tokens=12, stop=(stop,))])
    assert cut.finish_reason == "stop"
    assert cut.length <= free.length
    assert torch.equal(cut.response_ids, free.response_ids[: cut.length])
    assert cut.artifacts["response"].data == text[: text.index(stop)]


def test_end_tokens_are_part_of_the_response() -> None:
    engine = build("qwen3/answers")
    found = draw(engine, [token_request(i, prompt="letter: a", max_new_tokens=8) for i in range(4)])
    for t in found:
        assert t.finish_reason == "stop"
        assert int(t.response_ids[-1]) in engine._adapter.end_ids
        assert t.artifacts["response"].data in "abcd"


def test_a_prompt_is_encoded_once_for_all_its_samples() -> None:
    engine = build("qwen3_omni")
    prompt, media = prompts("qwen3_omni")[2]
    asked = [token_request(i, prompt=prompt, media=media, max_new_tokens=2) for i in range(4)]
    found = draw(engine, [*asked, token_request(9, prompt=prompt, media=media, max_new_tokens=2, system_prompt="s")])
    figures = engine.statistics()
    assert (figures["perf/rollout/prompt_cache/misses"], figures["perf/rollout/prompt_cache/hits"]) == (2, 3)
    assert found[0].inputs is found[3].inputs
    assert found[4].prompt_ids.shape != found[0].prompt_ids.shape


def test_aborting_keeps_the_others_as_they_were() -> None:
    wanted = draw(build(), requests(4, max_new_tokens=8))

    async def scene() -> tuple[Any, tuple[str, ...]]:
        engine = build()
        task = asyncio.ensure_future(engine.generate(requests(4, max_new_tokens=8)))
        for _ in range(8):
            await asyncio.sleep(0)
        aborted = engine.abort(["r1", "unknown"]).aborted
        return await task, aborted

    result, aborted = asyncio.run(scene())
    assert aborted == result.aborted == ("r1",)
    for t in result.trajectories:
        (same,) = [w for w in wanted if w.request == t.request]
        assert torch.equal(t.log_probs, same.log_probs)


def test_pausing_aborts_and_an_update_changes_what_is_said() -> None:
    async def scene() -> None:
        engine = build()
        before = (await engine.generate(requests(2))).trajectories
        task = asyncio.ensure_future(engine.generate(requests(4, max_new_tokens=50)))
        await asyncio.sleep(0)
        assert len(engine.pause().aborted) == 4
        assert not (await task).trajectories
        with pytest.raises(LifecycleError):
            await engine.generate(requests(1))
        engine.update_weights(changed(engine), 3)
        engine.resume()
        after = (await engine.generate(requests(2))).trajectories
        assert [t.policy_version for t in (*before, *after)] == [0, 0, 3, 3]
        assert not torch.equal(before[0].log_probs[:1], after[0].log_probs[:1])

    asyncio.run(scene())


@pytest.mark.parametrize("level", [1, 2])
def test_sleeping_changes_nothing(level: int) -> None:
    engine, twin = build("qwen3_omni"), build("qwen3_omni")
    stream = changed(engine)
    tensors = {name: tensor.clone() for name, tensor in stream}
    for one in (engine, twin):
        one.pause()
        if one is engine:
            one.sleep(level)
            one.wake()
        one.update_weights(make_stream("adapter", tensors.items(), one._weights._lora), 1)
        one.resume()
    prompt, media = prompts("qwen3_omni")[2]
    left, right = (draw(one, [token_request(prompt=prompt, media=media)])[0] for one in (engine, twin))
    assert torch.equal(left.log_probs, right.log_probs)


def test_values_that_are_not_finite_name_the_request() -> None:
    engine = build()
    with torch.no_grad():
        engine._adapter.transformer.lm_head.weight[5] = torch.nan
    with pytest.raises(NonFiniteError, match="request 'r0'"):
        draw(engine, requests(1, temperature=0.0))


@pytest.mark.parametrize(
    "change", [{"max_new_tokens": 0}, {"temperature": -1.0}, {"top_p": 0.0}, {"top_p": 1.5}, {"top_k": -1}]
)
def test_settings_that_cannot_work_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(change))):
        token_request(**change)
