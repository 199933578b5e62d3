"""Who may take groups out of a queue with a name: one program at a time, until it ends."""

from __future__ import annotations

import os
import socket
import time
import uuid
from typing import Any

import ray
from ray.exceptions import RayError

from omni_portable.contracts.errors import ClusterError

OWNER = "owner"
PROGRAM = uuid.uuid4().hex
"""This one."""
ANSWER_S = 10.0


class Owner:
    """Lives in the cluster as long as the program that made it."""

    def __init__(self, program: str, process: str) -> None:
        self._who = program, process

    def who(self) -> tuple[str, str]:
        """The program, and its process in words."""
        return self._who


def claim(queue: str, namespace: str, patience_s: float) -> Any:
    """Become the owner of a queue; the handle to :func:`release` it by, None where this program owns it already.

    Args:
        namespace: of its processes in the cluster.
        patience_s: for the cluster to notice that an owner has ended.

    Raises:
        ClusterError: another program owns it.
    """
    deadline = time.monotonic() + patience_s
    while True:
        made = ray.remote(Owner).options(name=OWNER, namespace=namespace, num_cpus=0, max_restarts=-1)
        try:
            return made.remote(PROGRAM, f"process {os.getpid()} on {socket.gethostname()}")
        except ValueError:  # the name is taken
            owner = _owner(namespace)
        if owner is not None and owner[0] == PROGRAM:
            return None
        if time.monotonic() > deadline:
            raise ClusterError(
                f"the queue '{queue}' is in use by another run ({owner[1] if owner else 'which does not answer'})",
                remedy="give every run a queue of its own (dataplane.options.queue), or leave the name out, or wait "
                "until the other has ended",
            )
        time.sleep(0.2)


def release(owner: Any) -> None:
    """End the ownership, where the cluster is still there."""
    if ray.is_initialized():
        ray.kill(owner)


def _owner(namespace: str) -> tuple[str, str] | None:
    """What the owner says; None where it has just ended or does not answer."""
    try:
        said: tuple[str, str] = ray.get(ray.get_actor(OWNER, namespace=namespace).who.remote(), timeout=ANSWER_S)
    except (ValueError, RayError):
        return None
    return said
