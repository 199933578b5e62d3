"""Messages between the driver and a rank that is its child: a pipe between both, tensors in shared memory beside it.

The tensors of a message are packed into one shared-memory segment. The receiver copies them out and removes the
segment, so a message takes memory only while it is on its way. Pickle is safe here because both ends are this program:
the pipe is an anonymous pair of file descriptors that the child was started with, and nothing on a network can reach
it.
"""

from __future__ import annotations

import os
import pickle
from multiprocessing.connection import Connection
from multiprocessing.shared_memory import SharedMemory
from typing import Any

from omni_backends.training.fsdp2.failure import RankError
from omni_backends.training.fsdp2.message import MAX_MESSAGE, Parcel, Place, apart, together


class Channel:
    """One end of the connection.

    Args:
        connection: this end of the pipe.
    """

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self._unread: str = ""

    def send(self, message: object) -> None:
        """Send any picklable object that holds plain tensors; they arrive detached, on the CPU.

        Raises:
            RankError: shared memory has no room for the tensors.
            OSError: the other end is gone.
        """
        parcel = apart(message)
        name = _fill(parcel) if parcel.size else ""
        self._unread = name
        self.connection.send_bytes(pickle.dumps((name, parcel.places, parcel.body), pickle.HIGHEST_PROTOCOL))

    def receive(self) -> Any:
        """The next message.

        Raises:
            EOFError / OSError: the other end is gone.
        """
        raw = self.connection.recv_bytes(MAX_MESSAGE)
        name, places, body = pickle.loads(raw)  # noqa: S301 - between parent and child only, see above
        return _take(name, places, body) if name else together(body, places, None)

    def close(self) -> None:
        """Close this end, and remove what was sent last in case nobody read it."""
        self.connection.close()
        if self._unread:
            try:
                segment = SharedMemory(self._unread)
            except FileNotFoundError:  # it was read, as it should be
                return
            segment.close()
            segment.unlink()


def _fill(parcel: Parcel) -> str:
    """Name of a new segment that holds the tensors; its memory is reserved before it is written to."""
    segment = SharedMemory(create=True, size=parcel.size)
    try:
        _reserve(segment, parcel.size)
        assert segment.buf is not None  # as long as it is open
        parcel.lay(segment.buf)
    except BaseException:
        segment.close()
        segment.unlink()
        raise
    segment.close()
    return segment.name


def _reserve(segment: SharedMemory, size: int) -> None:
    """Writing to pages that the system cannot provide would kill this process."""
    descriptor = os.open(f"/dev/shm/{segment.name.lstrip('/')}", os.O_RDWR)
    try:
        os.posix_fallocate(descriptor, 0, size)
    except OSError as error:
        raise RankError(
            f"shared memory (/dev/shm) has no room for the {size} bytes that go to or from a rank: {error}",
            remedy="enlarge it (docker run --shm-size=8g), or use smaller batches",
        ) from error
    finally:
        os.close(descriptor)


def _take(name: str, places: list[Place], body: bytes) -> Any:
    segment = SharedMemory(name)
    try:
        return together(body, places, segment.buf)
    finally:
        segment.close()
        segment.unlink()
