"""A port for the processes of an engine, kept from everybody else while they start."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def reserved_port() -> Iterator[int]:
    """A free TCP port. Inside, the system gives it to no other program that asks for any; one that is told its number,
    and asks for it by SO_REUSEADDR as servers do, may listen there, and goes on doing so afterwards."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("", 0))
        yield int(held.getsockname()[1])
