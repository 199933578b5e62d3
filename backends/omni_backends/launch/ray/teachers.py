"""A teacher in another process, as its trainer sees it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from omni_backends.launch.ray.wire import value
from omni_backends.launch.ray.worker import Worker
from omni_portable.contracts.teacher import TeacherOutput
from omni_portable.contracts.tokens import AnyTrajectory
from omni_portable.rollout.codec import pack


class RemoteTeacher:
    """`Teaching` over a worker; trajectories and outputs travel as packed bytes.

    Raises `WorkerLostError` once the process is gone; teaching leaves nothing behind and may be asked for again.
    """

    def __init__(self, worker: Worker) -> None:
        self._worker = worker

    async def teach_async(self, trajectories: Sequence[AnyTrajectory]) -> list[TeacherOutput]:
        blob = await asyncio.to_thread(pack, list(trajectories))
        answer = await self._worker.asked("teach", blob)
        outputs: list[TeacherOutput] = await asyncio.to_thread(value, answer, self._worker.label)
        return outputs
