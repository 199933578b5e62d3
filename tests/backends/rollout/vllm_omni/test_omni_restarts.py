"""Restarts of an engine whose process ends, told with processes that do nothing but end."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from omni_backends.rollout.external import updates
from omni_backends.rollout.vllm_omni import engine, host
from omni_backends.rollout.vllm_omni.engine import VllmOmniEngine
from omni_backends.rollout.vllm_omni.process import EngineEndedError
from omni_portable.config.tiny import tiny_folder
from omni_portable.contracts import registry
from omni_portable.contracts.errors import EngineEndedInUpdateError, WeightSyncError
from omni_portable.contracts.rollout import Extent
from omni_portable.models.weights import make_stream
from tests.support.engines import make_setup
from tests.support.requests import make_request


class MortalProcess:
    """Ends at its first request."""

    start_seconds, alive, dying = 0.0, True, False

    def __init__(self, started: list[MortalProcess]) -> None:
        started.append(self)
        self.process_id = len(started)

    def ended(self, during: str) -> EngineEndedError:
        return EngineEndedError(f"process {self.process_id} ended during {during}")

    async def draw(self, *_: Any) -> Any:
        raise self.ended("generate")

    def rpc(self, method: str, _: Any) -> list[dict[str, Any]]:
        if self.dying:
            self.alive = False
        if not self.alive:
            raise self.ended(method)
        return [{"ok": True, "error": "", "way": "", "figures": {}}]

    def close(self) -> None:
        self.alive = False


class Story:
    """An engine, the processes that it started, and the weights that it sent: (tensors, version)."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **options: Any) -> None:
        self.started: list[MortalProcess] = []
        self.sent: list[tuple[dict[str, torch.Tensor], int]] = []
        monkeypatch.setattr(engine, "require_version", lambda *_: "0.30.0")
        monkeypatch.setattr(host, "OmniProcess", lambda *_: MortalProcess(self.started))
        monkeypatch.setattr(updates, "send_weights", self._send)
        made = registry.spec("model", "sd3").options()
        setup = make_setup("sd3", tiny_folder("sd3"), lora_rank=0, options=made, engine="vllm_omni")
        setup.config.rollout.options = options
        self.engine = VllmOmniEngine(setup)
        self.schedule = self.engine._adapter.schedule(4, Extent(32, 32))

    def _send(self, stream: Any, call: Any, *, version: int, **_: Any) -> Any:
        self.sent.append((dict(stream), version))
        return SimpleNamespace(describe=lambda: "sent")

    def update(self, version: int, value: float) -> None:
        self.engine.pause()
        self.engine.update_weights(make_stream("full", [("w", torch.full((2,), value))], None), version)
        self.engine.resume()

    def draw(self) -> Any:
        return asyncio.run(self.engine.generate([make_request(0, height=32, width=32, schedule=self.schedule)]))


def test_a_process_that_ends_twice_in_one_call_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    story = Story(monkeypatch)
    with pytest.raises(EngineEndedError, match="process 2 ended during generate"):
        story.draw()
    assert [process.alive for process in story.started] == [False, True]
    assert story.sent == []
    assert story.engine.statistics()["perf/rollout/restarts"] == 1
    assert story.engine.health().in_flight == 0


def test_new_processes_get_the_last_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    story = Story(monkeypatch)
    story.update(1, 0.5)
    story.update(3, 0.25)
    with pytest.raises(EngineEndedError):
        story.draw()
    assert [version for _, version in story.sent] == [1, 3, 3]
    assert torch.equal(story.sent[-1][0]["w"], torch.full((2,), 0.25))


def test_without_a_copy_of_the_weights_the_end_is_final(monkeypatch: pytest.MonkeyPatch) -> None:
    story = Story(monkeypatch, keep_weights=False)
    story.update(1, 0.5)
    with pytest.raises(EngineEndedError, match=r"process 1 ended .*rollout.options.keep_weights is off"):
        story.draw()
    assert len(story.started) == 1


def test_new_processes_that_could_not_be_given_the_weights_are_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """They hold the model as it was loaded, and would be taken for the last policy."""
    story = Story(monkeypatch)
    story.update(1, 0.5)

    def lost(*_: Any, **__: Any) -> Any:
        raise WeightSyncError("no room")

    monkeypatch.setattr(updates, "send_weights", lost)
    with pytest.raises(WeightSyncError, match="no room"):
        story.draw()
    assert [process.alive for process in story.started] == [False, False]
    assert not story.engine.health().detail["alive"]


def test_what_is_counted_and_stopped_needs_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither where it is known to have ended, nor where it ends at the call itself."""
    story = Story(monkeypatch)
    story.started[0].dying = True
    assert story.engine.statistics()["perf/rollout/restarts"] == 0
    assert not story.engine.health().detail["alive"]
    story.engine.pause()
    assert story.engine.statistics()["perf/rollout/restarts"] == 0
    assert len(story.started) == 1


def test_an_update_in_which_the_process_ends_may_be_sent_again_to_a_new_one(monkeypatch: pytest.MonkeyPatch) -> None:
    story = Story(monkeypatch)
    story.update(1, 0.5)
    story.engine.pause()
    story.started[0].dying = True
    with pytest.raises(EngineEndedInUpdateError) as caught:
        story.engine.update_weights(make_stream("full", [("w", torch.full((2,), 0.25))], None), 2)
    assert caught.value.problem == "process 1 ended during the weight update to policy version 2"
    assert isinstance(caught.value, WeightSyncError), "trainer.sync_attempts holds for it"
    assert story.engine.health().policy_version == 1
    assert len(story.started) == 1, "whoever replaces the engine needs no new process of it"
    story.engine.update_weights(make_stream("full", [("w", torch.full((2,), 0.25))], None), 3)
    assert len(story.started) == 2
    assert story.sent[-1][1] == 3
    assert story.engine.health().policy_version == 3


def half(value: float) -> Any:
    return make_stream("full", [("w", torch.full((2,), value))], None)


def test_a_first_update_is_taken_back_by_new_processes_when_they_are_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    story = Story(monkeypatch, keep_weights=False)
    story.engine.pause()
    story.engine.update_weights(half(0.5), 1)
    ack = story.engine.recall_weights(0)
    assert (ack.ok, ack.policy_version, len(story.started)) == (True, 0, 1)
    story.engine.update_weights(half(0.25), 2)
    assert len(story.started) == 1, "an update may come first"
    assert story.engine.recall_weights(0).ok
    story.engine.resume()
    assert [process.alive for process in story.started] == [False, True]
    assert [version for _, version in story.sent] == [1, 2], "they began with the model's folder"
    story.engine.pause()
    story.engine.resume()
    assert len(story.started) == 2


def test_a_later_one_is_taken_back_with_the_update_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    story = Story(monkeypatch)
    story.update(1, 0.5)
    story.engine.pause()
    story.engine.update_weights(half(0.25), 2)
    assert story.engine.recall_weights(1).ok
    assert [version for _, version in story.sent] == [1, 2, 1]
    assert torch.equal(story.sent[-1][0]["w"], torch.full((2,), 0.5))
    story.engine.update_weights(half(0.25), 3)
    story.started[0].alive = False
    assert story.engine.recall_weights(1).ok, "a process that has ended gets it when it is started again"
    story.engine.resume()
    with pytest.raises(EngineEndedError):
        story.draw()
    assert [version for _, version in story.sent[3:]] == [3, 1]


def test_without_a_copy_of_its_own_it_waits_for_an_update(monkeypatch: pytest.MonkeyPatch) -> None:
    story = Story(monkeypatch, keep_weights=False)
    story.update(1, 0.5)
    story.engine.pause()
    story.engine.update_weights(half(0.25), 2)
    ack = story.engine.recall_weights(1)
    assert (ack.ok, ack.policy_version, len(story.sent)) == (False, 1, 2)
    story.engine.update_weights(half(0.5), 1)
    story.engine.resume()
