"""A composed reward in another process, as its trainer sees it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from omni_backends.launch.ray.wire import value
from omni_backends.launch.ray.worker import Worker
from omni_portable.contracts.reward import ComposedReward, RewardSample
from omni_portable.rollout.codec import pack


class RemoteRewards:
    """`Scoring` over a worker; samples and rewards travel as packed bytes.

    Raises `WorkerLostError` once the process is gone; scoring leaves nothing behind and may be asked for again.
    """

    def __init__(self, worker: Worker) -> None:
        self._worker = worker

    async def score_async(self, samples: Sequence[RewardSample]) -> ComposedReward:
        blob = await asyncio.to_thread(pack, list(samples))
        answer = await self._worker.asked("score", blob)
        reward: ComposedReward = await asyncio.to_thread(value, answer, self._worker.label)
        return reward
