"""Joining a cluster leaves SIGTERM to the command, whatever Ray installs."""

from __future__ import annotations

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
