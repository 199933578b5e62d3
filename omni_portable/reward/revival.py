"""A reward worker in another process that is started again when it is lost."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from omni_portable.contracts.errors import WorkerLostError
from omni_portable.contracts.reward import ComposedReward, RewardSample, Scoring

log = logging.getLogger(__name__)


class RevivedRewards:
    """Scores with a worker; where its process is gone, a new one scores the same samples. Scoring has no effects, so
    nothing is lost or counted twice.

    Args:
        label: of the worker, for messages.
        worker: the first one.
        restart: makes another; called in a thread.
        restarts: that there are at most.
    """

    def __init__(self, label: str, worker: Scoring, restart: Callable[[], Scoring], restarts: int) -> None:
        self._label, self._worker, self._restart, self._left = label, worker, restart, restarts

    async def score_async(self, samples: Sequence[RewardSample]) -> ComposedReward:
        """
        Raises:
            WorkerLostError: the worker was lost more often than it may be started again.
        """
        while True:
            try:
                return await self._worker.score_async(samples)
            except WorkerLostError as error:
                if self._left == 0:
                    raise WorkerLostError(
                        f"the reward worker '{self._label}' was lost once more than launcher.restarts allows: "
                        f"{error.problem}",
                        remedy="look into logs/ of the run directory for what ends it; the run can be continued from "
                        "its last checkpoint",
                    ) from error
                self._left -= 1
                log.warning("%s (it is started again, and %d samples are scored again)", error.problem, len(samples))
                self._worker = await asyncio.to_thread(self._restart)
