"""A teacher in another process, as its trainer sees it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from omni_backends.launch.ray.tensors import Bundle, reference_of
from omni_backends.launch.ray.wire import value
from omni_backends.launch.ray.worker import AGAIN, Worker, objects_named
from omni_portable.contracts.errors import ClusterError
from omni_portable.contracts.teacher import TeacherOutput
from omni_portable.contracts.tokens import AnyTrajectory
from omni_portable.rollout.codec import pack
from omni_portable.rollout.distant import Bundles


class RemoteTeacher:
    """`Teaching` over a worker; trajectories and outputs travel as packed bytes, tensors of samples that wait in the
    object store by reference.

    Raises `WorkerLostError` once the process is gone; teaching leaves nothing behind and may be asked for again. Raises
    `ClusterError` where tensors are gone with the machine that drew them, which no further attempt mends.

    Args:
        worker: the process.
        least: bytes from which on a tensor of an output stays in the object store; 0: none does.
    """

    def __init__(self, worker: Worker, least: int = 0) -> None:
        self._worker, self._least = worker, least

    async def teach_async(self, trajectories: Sequence[AnyTrajectory]) -> list[TeacherOutput]:
        count, bundles = len(trajectories), Bundles()
        blob = await asyncio.to_thread(pack, list(trajectories), bundles)
        asked = ("teach", blob, count, self._least, *map(reference_of, bundles.sources))
        first = trajectories[0].request.request_id
        lost = f"tensors of {count} samples, the first '{first}', are gone with the machine that drew them"
        with objects_named(ClusterError, lost, AGAIN):
            answer, *objects = await self._worker.asked_apart(*asked, extra=count if self._least else 0)
        sources = [Bundle(reference, self._worker.bring) for reference in objects]
        outputs: list[TeacherOutput] = await asyncio.to_thread(value, answer, self._worker.label, sources)
        return outputs
