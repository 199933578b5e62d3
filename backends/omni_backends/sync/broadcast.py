"""Weights through a process group of sender and workers, also on several machines: one broadcast per bucket.

The group is torch's own (gloo on the host; nccl, written against torch's API and not run on hardware), made for one
sync beside whatever groups the processes have, and abandoned after it. The address listens on loopback unless another
is asked for.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import torch
from torch import distributed

from omni_backends.sync.wire import Bucket, Piece
from omni_portable.contracts.errors import ConfigError, WeightSyncError

KIND = "broadcast"
BACKENDS = ("gloo", "nccl")
LOOPBACK = "127.0.0.1"
TIMEOUT = timedelta(seconds=60)
"""Of connecting, and of one bucket: a worker that died is noticed after so long at the latest."""


class BroadcastSender:
    """The sender's end, for any number of syncs with the same workers.

    Args:
        workers: how many processes take part beside this one.
        slot_bytes: of one bucket.
        host: address of this machine that the workers can reach.
        backend: 'gloo' or 'nccl'.
        device: where buckets are put together.
    """

    name = KIND
    slots = 1
    rendezvous = True

    def __init__(
        self,
        workers: int,
        slot_bytes: int,
        *,
        host: str = LOOPBACK,
        backend: str = "gloo",
        device: torch.device | None = None,
        timeout: timedelta = TIMEOUT,
    ) -> None:
        _check_backend(backend)
        self.slot_bytes = slot_bytes
        self._world, self._host, self._backend, self._timeout = workers + 1, host, backend, timeout
        self._memory = torch.empty(slot_bytes, dtype=torch.uint8, device=device or torch.device("cpu"))
        self._syncs = 0
        self._group: Any = None
        with socket.create_server((host, 0)) as listener:
            self._port = listener.getsockname()[1]
            self._store = distributed.TCPStore(
                host,
                self._port,
                is_master=True,
                timeout=timeout,
                wait_for_workers=False,
                master_listen_fd=listener.detach(),
            )

    def prepare(self, whole: int) -> None:
        """The memory of a bucket is there."""

    def describe(self) -> dict[str, Any]:
        self._syncs += 1
        self._group = None
        return {
            "kind": KIND,
            "host": self._host,
            "port": self._port,
            "world": self._world,
            "backend": self._backend,
            "prefix": f"sync-{self._syncs}",
            "slot_bytes": self.slot_bytes,
            "seconds": self._timeout.total_seconds(),
        }

    def deliver(self, filled: list[tuple[Piece, torch.Tensor]]) -> None:
        if self._group is None:  # the workers arrive meanwhile
            store = distributed.PrefixStore(f"sync-{self._syncs}", self._store)
            self._group = _group(store, 0, self._world, self._backend, self._host, self._timeout)
        end = 0
        for piece, data in filled:
            end = piece.offset + piece.length
            self._memory[piece.offset : end].copy_(data)
        self._group.broadcast(self._memory[:end], 0).wait()

    def cancel(self) -> None:
        """Stop waiting for workers that will not come."""
        if self._group is not None:
            self._group.abort()
            self._group = None

    def arrived(self) -> None:
        """The memory is used again."""

    def close(self) -> None:
        self._group = None
        del self._store


class BroadcastReceiver:
    """See :class:`BroadcastSender`.

    Args:
        place: what the sender described.
        rank: of this worker, from 0.
        device: where buckets arrive: the host for gloo, the worker's accelerator for nccl.
    """

    lasting = False
    place: tuple[int, ...] = ()

    def __init__(self, place: Mapping[str, Any], rank: int, device: torch.device | None = None) -> None:
        self._place, self._rank = dict(place), rank
        world, backend = int(place["world"]), str(place["backend"])
        _check_backend(backend)
        if not 0 <= rank < world - 1:
            raise WeightSyncError(f"this is rollout worker {rank}, but the sender expects {world - 1} workers")
        where = device or torch.device("cpu" if backend == "gloo" else "cuda")
        self._memory = torch.empty(int(place["slot_bytes"]), dtype=torch.uint8, device=where)
        self._group: Any = None

    def fetch(self, bucket: Bucket) -> torch.Tensor:
        """Take part in the bucket's broadcast; the first one joins the group."""
        end = max((piece.offset + piece.length for piece in bucket.pieces), default=0)
        if end > self._memory.numel():
            raise WeightSyncError(f"a bucket of {end} bytes was announced, the channel has {self._memory.numel()}")
        try:
            if self._group is None:
                self._group = self._join()
            self._group.broadcast(self._memory[:end], 0).wait()
        except RuntimeError as error:
            raise WeightSyncError(f"the broadcast of bucket {bucket.index} failed: {error}") from error
        return self._memory

    def _join(self) -> Any:
        place, timeout = self._place, timedelta(seconds=float(self._place["seconds"]))
        host = str(place["host"])
        store = distributed.TCPStore(host, int(place["port"]), is_master=False, timeout=timeout)
        prefixed = distributed.PrefixStore(str(place["prefix"]), store)
        return _group(prefixed, self._rank + 1, int(place["world"]), str(place["backend"]), host, timeout)

    def close(self) -> None:
        self._group = None


def _group(store: Any, rank: int, world: int, backend: str, host: str, timeout: timedelta) -> Any:
    """A process group that is nobody's default."""
    if backend == "nccl":
        options = distributed.ProcessGroupNCCL.Options()
        options._timeout = timeout
        return distributed.ProcessGroupNCCL(store, rank, world, options)
    gloo: Any = distributed.ProcessGroupGloo
    settings = gloo._Options()
    settings._timeout = timeout
    own = host == LOOPBACK
    settings._devices = [gloo.create_device(hostname=LOOPBACK) if own else gloo.create_default_device()]
    settings._threads = 2
    return gloo(store, rank, world, settings)


def _check_backend(backend: str) -> None:
    if backend not in BACKENDS:
        raise ConfigError(f"the weight channel 'broadcast' was asked for the backend '{backend}'", choices=BACKENDS)
    if backend == "nccl" and not distributed.is_nccl_available():
        raise ConfigError("this torch has no nccl", remedy="install a build for the accelerator", choices=("gloo",))
