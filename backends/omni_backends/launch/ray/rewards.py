"""A composed reward in another process, as its trainer sees it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from ray.exceptions import ObjectLostError

from omni_backends.launch.ray.media import addressed
from omni_backends.launch.ray.wire import value
from omni_backends.launch.ray.worker import Worker
from omni_portable.contracts.errors import RewardError, WorkerLostError
from omni_portable.contracts.reward import ComposedReward, RewardSample
from omni_portable.rollout.codec import pack


class RemoteRewards:
    """`Scoring` over a worker; samples and rewards travel as packed bytes, large media by reference.

    Raises `WorkerLostError` once the process is gone; scoring leaves nothing behind and may be asked for again. Raises
    `RewardError` where media are gone with the machine that drew them.
    """

    def __init__(self, worker: Worker) -> None:
        self._worker = worker

    async def score_async(self, samples: Sequence[RewardSample]) -> ComposedReward:
        sent, positions, references = addressed(samples)
        blob = await asyncio.to_thread(pack, [sent, positions])
        try:
            answer = await self._worker.asked("score", blob, *references)
        except WorkerLostError as error:
            if not isinstance(error.__cause__, ObjectLostError):
                raise
            raise RewardError(
                f"media of {len(references)} samples, the first '{samples[0].sample_id}', are gone with the machine "
                f"that drew them: {error.problem}",
                remedy="continue the run from its last checkpoint (trainer.resume=auto), which draws them again",
            ) from error
        reward: ComposedReward = await asyncio.to_thread(value, answer, self._worker.label)
        return reward
