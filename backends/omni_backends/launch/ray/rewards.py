"""A composed reward in another process, as its trainer sees it."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from omni_backends.launch.ray.media import addressed
from omni_backends.launch.ray.wire import value
from omni_backends.launch.ray.worker import AGAIN, Worker, objects_named
from omni_portable.contracts.errors import RewardError, WorkerLostError
from omni_portable.contracts.reward import ComposedReward, RewardSample
from omni_portable.rollout.codec import pack

LONGEST_PAUSE_S = 30.0
"""Between two attempts, as the scorers' failure policy has it."""


@dataclass(frozen=True)
class ScoringLimits:
    """What a worker takes at most for a set of samples, by the failure policy of its scorers: all attempts for all of
    them, then for each group.

    Args:
        timeout_s / retries: of the policy.
        answer_timeout_s: on top, for a worker that is well to answer.
    """

    timeout_s: float
    retries: int
    answer_timeout_s: float

    def seconds(self, groups: Collection[str]) -> float:
        """For samples of these groups."""
        return self.answer_timeout_s + (1 + len(groups)) * (1 + self.retries) * (self.timeout_s + LONGEST_PAUSE_S)


class RemoteRewards:
    """`Scoring` over a worker; samples and rewards travel as packed bytes, large media by reference.

    Raises `WorkerLostError` once the process is gone; scoring leaves nothing behind and may be asked for again. A
    process that does not even say that a scorer is late (one that holds the interpreter, say, or that was stopped) is
    ended, and counts as gone. Raises `RewardError` where media are gone with the machine that drew them.

    Args:
        limits: how long it may take.
    """

    def __init__(self, worker: Worker, limits: ScoringLimits) -> None:
        self._worker, self._limits = worker, limits

    async def score_async(self, samples: Sequence[RewardSample]) -> ComposedReward:
        sent, positions, references = addressed(samples)
        blob = await asyncio.to_thread(pack, [sent, positions])
        first = samples[0].sample_id
        lost = f"media of {len(references)} samples, the first '{first}', are gone with the machine that drew them"
        try:
            limit = self._limits.seconds({sample.group_id for sample in samples})
            with objects_named(RewardError, lost, AGAIN):
                # `wait_for` of Python 3.11 loses a cancellation that meets the answer
                async with asyncio.timeout(limit):
                    answer = await self._worker.asked("score", blob, *references)
        except TimeoutError as error:
            self._worker.kill()
            raise WorkerLostError(
                f"'{self._worker.label}' neither scored {len(samples)} samples nor gave up within {limit:g} seconds; "
                "its process is ended",
                remedy="look into logs/ of the run directory; reward.timeout_s and launcher.options.answer_timeout_s "
                "allow more time",
            ) from error
        reward: ComposedReward = await asyncio.to_thread(value, answer, self._worker.label)
        return reward
