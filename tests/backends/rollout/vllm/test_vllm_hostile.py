"""Engines that are killed while they start or take weights, options that leave no room, disks that are full."""

from __future__ import annotations

import os
import signal
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from omni_backends.rollout.external import guard as guards
from omni_backends.rollout.external.guard import Guard, marked
from omni_backends.rollout.vllm.serving import ServingFolder
from omni_portable.contracts.errors import ConfigError, LifecycleError, WeightSyncError
from omni_portable.contracts.lifecycle import EngineState
from tests.support.engines import require_installed
from tests.support.token_models import folder
from tests.support.vllm_pair import Pair, vllm_setup

require_installed("vllm")


class Deadly:
    """A stream that kills the engine's process between two of its tensors."""

    def __init__(self, stream: Any, process: int) -> None:
        self.manifest, self._stream, self._process = stream.manifest, stream, process

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
        for index, item in enumerate(self._stream):
            if index == 3:
                os.kill(self._process, signal.SIGKILL)
                time.sleep(0.5)
            yield item


def test_an_engine_that_is_killed_in_an_update_is_started_again_with_its_weights(text_pair: Pair) -> None:
    text_pair.update(text_pair.changed(21))
    version, checksums = text_pair.version, text_pair.engine.weights_checksum()
    text_pair.engine.pause()
    (process,) = text_pair.engine.health().detail["processes"]
    with pytest.raises(WeightSyncError, match="ended during the weight update to policy version"):
        text_pair.engine.update_weights(Deadly(text_pair.stream(text_pair.changed(22)), process), version + 1)
    assert text_pair.engine.health().state is EngineState.PAUSED
    assert text_pair.engine.statistics(), "it counts what it knows"
    assert (text_pair.version, text_pair.engine.weights_checksum()) == (version, checksums)
    assert text_pair.engine.health().detail["processes"] != (process,)
    text_pair.engine.resume()
    text_pair.update(text_pair.changed(22))
    text_pair.assert_same(text_pair.requests(4))


def test_an_engine_that_is_killed_while_it_starts_says_so_and_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    from omni_backends.rollout.vllm.engine import VllmEngine

    made: list[Guard] = []
    whole = Guard.__init__

    def remembered(self: Guard) -> None:
        whole(self)
        made.append(self)

    monkeypatch.setattr(guards.Guard, "__init__", remembered)

    def kill() -> None:
        while not (made and (found := list(marked(made[0]._mark)))):
            time.sleep(0.1)
        time.sleep(2.0)
        for process in found:
            os.kill(process, signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    with pytest.raises(LifecycleError, match="'vllm' did not start"):
        VllmEngine(vllm_setup("qwen3"))
    killer.join()
    assert not list(marked(made[0]._mark))
    assert not made[0].folder.exists()


def test_an_engine_that_does_not_start_in_time_says_so_and_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    from omni_backends.rollout.vllm.engine import VllmEngine

    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as own:  # engines of other runs have theirs beside it
        monkeypatch.setattr(tempfile, "tempdir", own)
        with pytest.raises(LifecycleError, match=r"did not start: TimeoutError\('no answer within 1 s'\)"):
            VllmEngine(vllm_setup("qwen3", start_timeout_s=1.0))
        monkeypatch.undo()
        assert list(Path(own).glob("omni-portable-engine-*")) == []


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"max_model_len": 1}, r"max_model_len=1 leaves no room for a prompt beside rollout.max_new_tokens=256"),
        ({"max_model_len": 4096, "kv_cache_mib": 1}, r"kv_cache_mib=1: one request of 4096 tokens takes \d+ MiB"),
        ({"kv_cache_mib": -5}, "kv_cache_mib=-5"),
        ({"start_timeout_s": float("nan")}, "start_timeout_s=nan"),
        ({"call_timeout_s": float("inf")}, "call_timeout_s=inf"),
        ({"gpu_memory_utilization": 5}, "gpu_memory_utilization"),
    ],
)
def test_options_that_leave_no_room_are_refused_before_anything_starts(options: dict[str, Any], said: str) -> None:
    from omni_backends.rollout.vllm.engine import VllmEngine

    with pytest.raises(ConfigError, match=said):
        VllmEngine(vllm_setup("qwen3", **options))


def test_a_full_temporary_folder_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> str:
        raise OSError(28, "No space left on device")

    model = folder("qwen3_omni")
    with monkeypatch.context() as patch:
        patch.setattr(tempfile, "mkdtemp", full)
        with pytest.raises(LifecycleError, match=r"cannot be written in .*: No space left on device") as caught:
            ServingFolder(model)
        assert "TMPDIR" in caught.value.remedy
        with pytest.raises(LifecycleError, match="No space left"):
            Guard()
    written: list[Path] = []

    def half(self: Path, *_: Any, **__: Any) -> int:
        written.append(self.parent)
        full()
        return 0

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_text", half)
        with pytest.raises(LifecycleError, match="No space left"):
            ServingFolder(model)
    assert not written[0].exists()
