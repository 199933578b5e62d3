"""The rollout stage of the loop: requests in pieces, through a gate, and again where they were interrupted."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

from omni_portable.contracts.errors import LifecycleError
from omni_portable.contracts.rollout import RolloutEngine, RolloutResult
from omni_portable.contracts.tokens import AnyRequest, AnyTrajectory, TokenRequest
from omni_portable.trainer.consistency import check_schedules
from omni_portable.trainer.modes.gate import Gate
from omni_portable.trainer.modes.slots import Slots
from omni_portable.trainer.timing import StageClock

Item = TypeVar("Item")
Other = TypeVar("Other")


@dataclass
class Interruptions:
    """What new weights did to requests that were out.

    Args:
        continued: requests that went on after the tokens they had.
        kept_tokens: those tokens.
        restarted: requests that began again: of denoised samples, or without a token yet.
    """

    continued: int = 0
    kept_tokens: int = 0
    restarted: int = 0


class RolloutStage:
    """Requests -> trajectories, each checked to have run the schedule it carried.

    Args:
        piece_size: requests that are handed to the engine at a time; 0 hands it all at once.
        slots: pieces that are out at a time; None: one.
        gate: passed by every piece; None where nobody closes it.
        resubmit: go on with aborted requests instead of failing (a mode that aborts to bring in new weights): responses
            go on after the tokens that they have, denoised samples begin again.
    """

    def __init__(
        self,
        engine: RolloutEngine,
        *,
        piece_size: int = 0,
        slots: Slots | None = None,
        gate: Gate | None = None,
        resubmit: bool = False,
    ) -> None:
        self._engine, self._piece_size, self._resubmit = engine, piece_size, resubmit
        self._gate, self._slots = gate or Gate(), slots or Slots(1)
        self._interruptions, self._drawn = Interruptions(), 0

    async def run(self, requests: Sequence[AnyRequest]) -> Sequence[AnyTrajectory]:
        """Trajectories in request order.

        Raises:
            LifecycleError: requests were aborted, and this stage does not resubmit.
        """
        pieces = await gathered([self.draw(piece) for piece in self.pieces(requests)])
        return [trajectory for piece in pieces for trajectory in piece]

    def pieces(self, requests: Sequence[AnyRequest]) -> list[Sequence[AnyRequest]]:
        """What is handed to the engine at a time; consecutive, so that its packs are those of one call."""
        size = self._piece_size or len(requests)
        return [requests[first : first + size] for first in range(0, len(requests), size)]

    async def draw(self, requests: Sequence[AnyRequest], clock: StageClock | None = None) -> Sequence[AnyTrajectory]:
        """One piece, in request order; pieces get their turn in the order of these calls. `clock` measures the time
        that the engine takes, without the wait for a turn, as 'rollout'."""
        done: dict[str, AnyTrajectory] = {}
        left = list(requests)
        async with self._slots.one():  # before the gate: only what is really out keeps the gate from being drained
            while left:
                async with self._gate.passing():
                    with clock.measure("rollout") if clock else nullcontext():
                        result = await self._engine.generate(left)
                if result.aborted and not self._resubmit:
                    raise LifecycleError(
                        f"{len(result.aborted)} rollout requests were aborted and nobody resubmits them: "
                        f"{result.aborted[:3]}"
                    )
                check_schedules(result.trajectories)
                self._drawn += len(result.trajectories)
                done |= {t.request.request_id: t for t in result.trajectories}
                left = [self._again(request, result) for request in left if request.request_id not in done]
        return [done[request.request_id] for request in requests]

    def statistics(self) -> dict[str, float]:
        """``perf/rollout_samples`` that were drawn since the last call, and, where requests may be interrupted,
        ``rollout/interrupted/...``."""
        taken, self._interruptions = self._interruptions, Interruptions()
        figures, self._drawn = {"perf/rollout_samples": float(self._drawn)}, 0
        if self._resubmit:
            figures |= {f"rollout/interrupted/{name}": float(count) for name, count in asdict(taken).items()}
        return figures

    def _again(self, request: AnyRequest, result: RolloutResult) -> AnyRequest:
        """An interrupted request as it is submitted next."""
        if isinstance(request, TokenRequest):
            request = request.after(result.partials.get(request.request_id))
            if request.prefix is not None:
                self._interruptions.continued += 1
                self._interruptions.kept_tokens += request.prefix.length
                return request
        self._interruptions.restarted += 1
        return request


async def both(first: Coroutine[Any, Any, Item], second: Coroutine[Any, Any, Other]) -> tuple[Item, Other]:
    """Two results; the first error cancels the other and is raised as it is."""
    one, two = await gathered(list[Coroutine[Any, Any, Any]]([first, second]))
    return one, two


async def gathered(pieces: Sequence[Coroutine[Any, Any, Item]]) -> list[Item]:
    """Results in order; the first error cancels the rest and is raised as it is."""
    tasks: list[asyncio.Task[Item]] = []
    try:
        async with asyncio.TaskGroup() as group:
            tasks += [group.create_task(piece) for piece in pieces]
    except BaseExceptionGroup as failed:
        raise failed.exceptions[0] from None
    return [task.result() for task in tasks]
