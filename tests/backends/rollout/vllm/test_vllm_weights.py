"""Weight updates of a vLLM engine: they arrive and take effect, or nothing changes."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest
import torch

from omni_backends.sync import SharedMemorySender, memory
from omni_portable.contracts.errors import LifecycleError, WeightSyncError
from omni_portable.contracts.lifecycle import EngineState
from omni_portable.models.weights import checksums, make_stream
from tests.support.engines import require_installed
from tests.support.vllm_pair import Pair, assert_equal, draw

require_installed("vllm")

PAIRS = ("text_pair", "lora_pair", "omni_pair")
Broken = Callable[[dict[str, torch.Tensor], str], None]


@pytest.fixture(params=PAIRS)
def pair(request: pytest.FixtureRequest) -> Pair:
    found: Pair = request.getfixturevalue(request.param)
    return found


def test_updates_take_effect_and_can_be_taken_back(pair: Pair) -> None:
    requests = pair.requests()
    before = draw(pair.engine, requests)
    for seed in (1, 2):
        pair.update(pair.changed(seed))
        pair.assert_same(requests)
        moved = draw(pair.engine, requests)
        assert any(a.response_ids.tolist() != b.response_ids.tolist() for a, b in zip(moved, before, strict=True))
    pair.update(pair.first)
    assert_equal(draw(pair.engine, requests), before)


def test_an_update_that_other_replicas_could_not_take_is_taken_back(pair: Pair) -> None:
    requests = pair.requests(4)
    pair.update(pair.first)
    before = draw(pair.engine, requests)
    held, former = pair.engine.weights_checksum(), pair.version
    for engine in (pair.engine, pair.native):
        engine.pause()
        engine.update_weights(pair.stream(pair.changed(3)), former + 1)
        ack = engine.recall_weights(former)
        assert (ack.ok, ack.policy_version) == (True, former)
        assert engine.weights_checksum() == held
        engine.resume()
    pair.assert_same(requests)
    assert_equal(draw(pair.engine, requests), before)


def test_once_resumed_it_goes_back_only_with_weights_that_it_is_sent(pair: Pair) -> None:
    requests = pair.requests(4)
    pair.update(pair.first)
    before = draw(pair.engine, requests)
    pair.update(pair.changed(3))
    pair.engine.pause()
    former = pair.version - 1
    assert not pair.engine.recall_weights(former).ok
    with pytest.raises(LifecycleError, match=f"version {former + 1}, which was recalled and cannot resume"):
        pair.engine.resume()
    assert pair.engine.update_weights(pair.stream(pair.first), former).policy_version == former
    pair.engine.resume()
    assert_equal(draw(pair.engine, requests), before)


def test_what_it_began_with_is_always_there(text_pair: Pair) -> None:
    """It is started again with it, but not where an update comes first."""
    requests, engine = text_pair.requests(4), text_pair.engine
    text_pair.update(text_pair.first)
    before, began = draw(engine, requests), engine._host.process_ids
    engine.pause()
    engine.update_weights(text_pair.stream(text_pair.changed(3)), text_pair.version + 1)
    assert engine.recall_weights(0).ok
    engine.update_weights(text_pair.stream(text_pair.changed(4)), text_pair.native.health().policy_version + 1)
    assert engine._host.process_ids == began
    assert engine.recall_weights(0).ok
    engine.resume()
    assert engine._host.process_ids != began
    assert_equal(draw(engine, requests), before)


def test_the_prefix_cache_does_not_outlive_an_update(text_pair: Pair) -> None:
    long = text_pair.requests(1, max_new_tokens=2)[0]
    asked = [long.__class__(**{**long.__dict__, "prompt": "the same words " * 20})]
    draw(text_pair.engine, asked)
    text_pair.update(text_pair.changed(5))
    text_pair.assert_same(asked)


def _nan(tensors: dict[str, torch.Tensor], name: str) -> None:
    tensors[name].view(-1)[0] = float("nan")


def _shape(tensors: dict[str, torch.Tensor], name: str) -> None:
    tensors[name] = tensors[name][:-1]


def _dtype(tensors: dict[str, torch.Tensor], name: str) -> None:
    tensors[name] = tensors[name].bfloat16()


def _name(tensors: dict[str, torch.Tensor], name: str) -> None:
    tensors[f"{name}.unknown"] = tensors.pop(name)


@pytest.mark.parametrize("break_it", [_nan, _shape, _dtype, _name])
def test_wrong_weights_are_refused_by_name_and_change_nothing(pair: Pair, break_it: Broken) -> None:
    requests = pair.requests(4)
    before, checksums, version = draw(pair.engine, requests), pair.engine.weights_checksum(), pair.version
    wrong = pair.changed(7)
    name = list(wrong)[1]
    break_it(wrong, name)
    pair.engine.pause()
    with pytest.raises(WeightSyncError, match=name.replace(".", r"\.")):
        pair.engine.update_weights(pair.stream(wrong), version + 1)
    assert pair.engine.health().state is EngineState.PAUSED
    assert pair.version == version
    assert pair.engine.weights_checksum() == checksums
    pair.engine.resume()
    assert_equal(draw(pair.engine, requests), before)


def test_a_lora_for_other_modules_is_refused(lora_pair: Pair) -> None:
    lora_pair.engine.pause()
    info = lora_pair.native._weights._lora
    assert info is not None
    other = type(info)(**{**info.__dict__, "alpha": info.alpha * 2})
    with pytest.raises(WeightSyncError, match="alpha"):
        lora_pair.engine.update_weights(make_stream("adapter", lora_pair.first.items(), other), lora_pair.version + 1)
    with pytest.raises(WeightSyncError, match="mode 'adapter', not 'full'"):
        lora_pair.engine.update_weights(make_stream("full", lora_pair.first.items(), None), lora_pair.version + 1)


def test_updates_need_a_paused_engine_a_newer_version_and_no_other_update(text_pair: Pair) -> None:
    engine = text_pair.engine
    with pytest.raises(LifecycleError, match="running"):
        engine.update_weights(text_pair.stream(text_pair.first), 99)
    engine.pause()
    with pytest.raises(WeightSyncError, match="version"):
        engine.update_weights(text_pair.stream(text_pair.first), text_pair.version)
    with engine._syncing, pytest.raises(WeightSyncError, match="another weight update"):
        engine.update_weights(text_pair.stream(text_pair.first), 99)


def test_too_little_shared_memory_fails_the_update_and_nothing_else(
    text_pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests = text_pair.requests(4)
    before, version = draw(text_pair.engine, requests), text_pair.version
    text_pair.engine._host._updates.channel.close()  # so that it needs new memory

    def full(*arguments: Any) -> None:
        raise OSError(28, "No space left on device")

    text_pair.engine.pause()
    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", full)
        with pytest.raises(WeightSyncError, match=r"needs .* MiB in /dev/shm") as caught:
            text_pair.engine.update_weights(text_pair.stream(text_pair.changed(4)), version + 1)
    assert "--shm-size" in caught.value.remedy
    assert text_pair.engine.health().state is EngineState.PAUSED
    assert text_pair.version == version
    text_pair.engine.resume()
    assert_equal(draw(text_pair.engine, requests), before)
    text_pair.update(text_pair.changed(4))
    text_pair.assert_same(requests)


def test_updates_that_fit_shared_memory_only_in_pieces_arrive_and_are_kept_for_a_restart(
    text_pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    channel = SharedMemorySender(4096)
    monkeypatch.setattr(memory, "free_bytes", lambda: 0)
    with monkeypatch.context() as patch:
        patch.setattr(text_pair.engine._host._updates, "channel", channel)
        text_pair.update(text_pair.changed(6))
        assert not channel.lasting
        held = text_pair.engine._host._updates.held
        assert held is not None
        assert checksums(held.tensors.items()) == text_pair.engine.weights_checksum()
        text_pair.assert_same(text_pair.requests(4))
    channel.close()


def test_a_reload_that_breaks_off_is_undone(pair: Pair, tmp_path: Any) -> None:
    """The engine's own loader fails after some layers: outputs and read-back are those from before."""
    requests = pair.requests(4)
    before, checksums = draw(pair.engine, requests), pair.engine.weights_checksum()
    pair.engine.pause()
    rpc = pair.engine._host._process.rpc
    (answer,) = rpc("omni_break_next_update", {})
    assert answer["ok"]
    with pytest.raises(WeightSyncError, match="broken on purpose"):
        pair.engine.update_weights(pair.stream(pair.changed(9)), pair.version + 1)
    assert pair.engine.weights_checksum() == checksums
    pair.engine.resume()
    assert_equal(draw(pair.engine, requests), before)
    pair.update(pair.changed(9))
    pair.assert_same(requests)
