"""A port that an engine's processes will meet at is nobody else's until they do."""

from __future__ import annotations

import socket
from contextlib import ExitStack
from datetime import timedelta

import pytest
import torch

from omni_backends.rollout.external.ports import reserved_port

STARTS = 200


def test_as_many_engines_as_start_together_get_as_many_ports_and_nobody_else_gets_one_of_them() -> None:
    with ExitStack() as stack:
        ports = {stack.enter_context(reserved_port()) for _ in range(STARTS)}
        assert len(ports) == STARTS
        for _ in range(STARTS):
            other = stack.enter_context(socket.socket())
            other.bind(("", 0))
            assert other.getsockname()[1] not in ports
        refused = stack.enter_context(socket.socket())
        with pytest.raises(OSError, match="Address already in use"):
            refused.bind(("", next(iter(ports))))


def test_who_is_told_the_port_listens_there_and_goes_on_doing_so() -> None:
    """In the order in which vLLM-Omni does it: it looks whether the port is free, then torch's store listens."""
    with reserved_port() as port:
        with socket.socket() as looking:
            looking.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            looking.bind(("", port))
            looking.listen(1)
        first = torch.distributed.TCPStore("localhost", port, 2, is_master=True, wait_for_workers=False)
    second = torch.distributed.TCPStore("localhost", port, 2, is_master=False, timeout=timedelta(seconds=60))
    first.set("key", "value")
    assert second.get("key") == b"value"
