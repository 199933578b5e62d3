"""What is being started when a run ends is stopped, not waited for."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

from omni_portable.contracts.errors import WorkerLostError
from omni_portable.rollout.fanout import give_up
from omni_portable.rollout.router import Router
from tests.rollout.router_fakes import Replica, stream


def test_a_replica_that_is_being_made_anew_is_given_up(monkeypatch) -> None:
    """It cannot be stopped yet when that is asked for the first time."""
    monkeypatch.setattr("omni_portable.rollout.fanout.AGAIN_S", 0.01)
    begun, killed, asked = threading.Event(), threading.Event(), list[str]()

    def restart(name: str):
        begun.set()
        assert killed.wait(60)
        raise WorkerLostError(f"the process of '{name}' is gone")

    def abandon(name: str) -> None:
        asked.append(name)
        if len(asked) > 1:
            killed.set()

    replicas = {name: Replica(name) for name in ("a", "b")}
    router = Router(replicas, restart=restart, restarts=1, abandon=abandon)
    replicas["a"].die()
    router.pause()
    assert router.replicas == ("b",)
    assert begun.wait(60)
    router.close()
    assert killed.is_set()
    assert set(asked) == {"a"}
    assert replicas["b"].update_weights(stream(1.0), 1).policy_version == 1, "the others are nobody's to stop here"


def test_what_is_done_is_left_alone() -> None:
    with ThreadPoolExecutor(1) as thread:
        done = thread.submit(str)
        done.result()
        give_up({done: "a"}, lambda name: 1 / 0)
