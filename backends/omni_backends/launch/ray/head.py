"""Is the cluster still there? Looked at from a thread of our own: Ray waits for a head that is gone for a minute and
then ends this process in the middle of whatever it does. Where its process on this machine is gone, the first large
object ends this process without a word."""

from __future__ import annotations

import contextlib
import logging
import os
import select
import socket
import struct
import threading
import time

import psutil
import ray

from omni_portable.contracts.errors import ClusterError

log = logging.getLogger(__name__)

LOOK_S = 1.0
"""Between two looks; each costs one connection."""
PATIENCE_S = 20.0
"""For a head on another machine, or one that somebody may start again: what is between may be at fault."""
KNOCK_S = 5.0
AGAIN = "run the same command with --resume: it goes on from the newest checkpoint"


class Head:
    """Looks after the head of the cluster, and after Ray's process on this machine, until it is closed.

    Args:
        address: 'HOST:PORT' at which the head takes connections.
        started: the cluster was started by this process; nobody will start its head again.
    """

    def __init__(self, address: str, started: bool) -> None:
        host, _, port = address.removeprefix("ray://").rpartition(":")
        self._place = (host.strip("[]"), int(port))
        self._address = address
        self._remedy = AGAIN if started else "start the cluster again, then " + AGAIN
        self._patience = 0.0 if started else PATIENCE_S
        self._local = local_process()
        self._gone: ClusterError | None = None
        self._silent_since: float | None = None
        self._closed = threading.Event()
        self._looking = threading.Lock()
        self._thread = threading.Thread(target=self._watch, name="ray head", daemon=True)
        self._thread.start()

    @property
    def gone(self) -> ClusterError | None:
        """What happened to it, as far as is known by now."""
        return self._gone

    def look(self) -> ClusterError | None:
        """As :attr:`gone`, after another look."""
        with self._looking:
            if self._gone is None and not self._closed.is_set() and (why := self._missing()):
                log.error("%s", why)
                self._gone = ClusterError(why, remedy=self._remedy)
        return self._gone

    def close(self) -> None:
        """Look no more."""
        self._closed.set()
        self._thread.join()

    def _watch(self) -> None:
        with contextlib.ExitStack() as stack:
            ends = select.poll()
            if self._local is not None and hasattr(os, "pidfd_open"):  # Linux tells at once when it ends
                descriptor = os.pidfd_open(self._local.pid)
                stack.callback(os.close, descriptor)
                ends.register(descriptor, select.POLLIN)
            while not self._closed.is_set() and self.look() is None:
                ends.poll(LOOK_S * 1000)

    def _missing(self) -> str:
        if self._local is not None and not _lives(self._local):
            return (
                f"the Ray cluster at {self._address} is lost: Ray's process on this machine ({self._local.pid}) ended"
            )
        try:
            socket.create_connection(self._place, timeout=KNOCK_S).close()
        except OSError as error:
            now = time.monotonic()
            self._silent_since = self._silent_since or now
            if now - self._silent_since >= self._patience:
                waited = f" for {self._patience:g} seconds" if self._patience else ""
                return (
                    f"the head of the Ray cluster at {self._address} is gone: nothing answers there{waited} ({error})"
                )
        else:
            self._silent_since = None
        return ""


def local_process() -> psutil.Process | None:
    """Ray's process on this machine (the 'raylet') that this process is connected to; None where it joined from
    outside."""
    node = ray._private.worker.global_worker.node
    if node is None or ray.util.client.ray.is_connected():
        return None
    with socket.socket(socket.AF_UNIX) as asking:
        asking.connect(node.raylet_socket_name)
        pid, _, _ = struct.unpack("3i", asking.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return psutil.Process(pid)


def _lives(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False
