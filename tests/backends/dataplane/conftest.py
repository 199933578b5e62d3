"""Further planes on one queue."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.support.planes import queue_options


@pytest.fixture
def attach(queue: Any) -> Iterator[Callable[..., Any]]:
    """Further planes on the queue 'tests', which is empty; they find it and leave it running."""
    from omni_backends.dataplane.transferqueue.plane import TransferQueuePlane

    queue.drop([tag.group_id for tag in queue.tags()])
    made: list[TransferQueuePlane] = []

    def make(**changes: Any) -> TransferQueuePlane:
        made.append(TransferQueuePlane(queue_options(**changes)))
        return made[-1]

    yield make
    for plane in made:
        plane._rows.close()
