"""Joining a cluster leaves SIGTERM to the command, and keeps Ray from aborting it."""

from __future__ import annotations

import os
import signal
import sys

import pytest

pytest.importorskip("ray")

from omni_backends.launch.ray import cluster


def test_the_handler_of_sigterm_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    def init(**arguments: object) -> None:
        signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(number))
        if arguments:
            raise ConnectionError("nobody there")

    def mine(number: int, frame: object) -> None: ...

    monkeypatch.setattr(cluster.ray, "init", init)
    before = signal.signal(signal.SIGTERM, mine)
    try:
        cluster._init()
        assert signal.getsignal(signal.SIGTERM) is mine
        with pytest.raises(ConnectionError):
            cluster._init(address="x")
        assert signal.getsignal(signal.SIGTERM) is mine
    finally:
        signal.signal(signal.SIGTERM, before)


def test_ray_has_no_time_to_abort_a_process_whose_head_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    name, seen = "RAY_gcs_rpc_server_reconnect_timeout_s", []
    monkeypatch.setattr(cluster.ray, "init", lambda **arguments: seen.append(os.environ[name]))
    monkeypatch.delenv(name, raising=False)
    cluster._init()
    assert int(seen.pop()) > 600
    assert name not in os.environ
    monkeypatch.setenv(name, "7")
    cluster._init()
    assert seen == ["7"], "who sets it decides"
    assert os.environ[name] == "7"
