"""What runs in the process of one rank of a train engine: its log, where it is, and the engine's own entry."""

from __future__ import annotations

import importlib
import os
import socket
from typing import Any

import numpy as np
import psutil

from omni_backends.launch.ray.cluster import is_loopback
from omni_backends.launch.ray.host import Host, node_address, versions
from omni_backends.launch.ray.tensors import Parts
from omni_backends.launch.ray.wire import answered
from omni_portable.contracts.errors import ClusterError, LifecycleError
from omni_portable.contracts.ranks import RankEntry, RankPlace, Serve


class RankHost(Host):
    """One rank. It is built and called on one thread; `read_log` answers meanwhile."""

    def __init__(self) -> None:
        super().__init__()
        self._serve: Serve | None = None

    def here(self, meeting: bool) -> bytes:
        """Packed facts of this process: its `pid`, `versions`, the `address` of its machine in the cluster and the
        network `interface` that has it, and with `meeting` a free `port` there."""

        def facts() -> dict[str, Any]:
            address = node_address()
            found = {"pid": os.getpid(), "versions": versions(), "address": address, "interface": interface(address)}
            return found | ({"port": _free_port(address)} if meeting else {})

        return answered(facts)

    def begin(self, entry: str, blob: bytes, place: dict[str, Any]) -> bytes:
        """Run the engine's entry (a `RankEntry`) with the fields of a `RankPlace`; its first answer."""

        def begin() -> bytes:
            module, _, function = entry.partition(":")
            run: RankEntry = getattr(importlib.import_module(module), function)
            answer, self._serve = run(blob, RankPlace(**place))
            return answer

        answer: bytes = self._call(begin)
        return answer

    def command(self, message: bytes, *bundles: Parts) -> tuple[bytes, Parts]:
        """The rank's answer to a message of its driver, of whose tensors some are in bundles of the object store; and a
        bundle of tensors that the answer leaves out."""

        def serve() -> tuple[bytes, Parts]:
            if self._serve is None:
                raise LifecycleError("this process holds no rank", remedy="begin one first")
            answer, parts = self._serve(message, [[memoryview(part) for part in parts] for parts in bundles])
            return answer, [np.asarray(part) for part in parts]

        answer: tuple[bytes, Parts] = self._call(serve)
        return answer


def interface(address: str) -> str:
    """Name of the network interface that has an address of this machine; '' of a loopback address.

    Raises:
        ClusterError: no interface has it.
    """
    if is_loopback(address):
        return ""
    for name, found in psutil.net_if_addrs().items():
        if any(one.address.partition("%")[0] == address for one in found):
            return name
    raise ClusterError(
        f"this machine is known to the Ray cluster as {address}, which is an address of none of its interfaces: ranks "
        "cannot listen there",
        remedy="start Ray with --node-ip-address=ADDRESS of an interface that the other machines reach",
    )


def _free_port(address: str) -> int:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as server:
        server.bind((address, 0))
        return int(server.getsockname()[1])
