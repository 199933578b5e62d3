"""Dynamic hybrid rollout: while a step waits for its samples, the actor's devices draw some of them.

Lend: wake -> update weights -> resume -> join the router. Reclaim: leave the router -> abort (the others go on with its
requests) -> pause -> sleep. All of it happens while the consumer waits, between two updates of the actor, so neither
the actor nor the policy version changes meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from omni_portable.contracts.device import SleepTag
from omni_portable.contracts.errors import LifecycleError, OmniPortableError, WorkerLostError
from omni_portable.contracts.training import TrainEngine
from omni_portable.trainer.modes.guest import Guest, Place
from omni_portable.trainer.modes.slots import Slots
from omni_portable.trainer.modes.stock import Stock
from omni_portable.trainer.timing import StageClock

if TYPE_CHECKING:
    from omni_portable.rollout.router import Router  # loads torch, which the simulator does without

log = logging.getLogger(__name__)
LEND, LENT, RECLAIM = "lend", "lent", "reclaim"
"""Stages on the timeline."""


@dataclass
class Ledger:
    """What happened since the last step's row."""

    lends: int = 0
    requests: int = 0
    failed_updates: int = 0
    lost: int = 0


@dataclass(frozen=True)
class Terms:
    """When devices change hands; shares of the samples that a step trains on.

    Args:
        lend_below: lend where less is ready when a step is due.
        reclaim_at: take back once so much is ready, at the latest when all is.
        actor_sleeps: what of the actor sleeps meanwhile, with a copy on the host.
    """

    lend_below: float = 1.0
    reclaim_at: float = 1.0
    actor_sleeps: tuple[SleepTag, ...] = ()


class Lending:
    """Lends engines to rollout and takes them back.

    A lent replica whose process dies leaves the router like any other (its requests are drawn again); one that cannot
    be woken or updated never joins. Either stays out for the rest of the run, which says so and goes on. A replica that
    does not give the devices back ends the run: the actor needs them.

    Args:
        guests: of the actor's devices; running or paused.
        slots: one more for every lent replica.
    """

    def __init__(
        self,
        guests: Sequence[Guest],
        router: Router,
        actor: TrainEngine,
        slots: Slots,
        stock: Stock,
        clock: StageClock,
        terms: Terms,
    ) -> None:
        self.guests, self._router, self._actor = list(guests), router, actor
        self._slots, self._stock, self._clock, self._terms = slots, stock, clock, terms
        self._own_slots = slots.limit
        self._ledger = Ledger()
        self._lent = ExitStack()

    async def start(self) -> None:
        """The devices are the actor's."""
        for guest in self.guests:
            await self._settle(guest)

    async def during(self, step: int, making: Awaitable[int]) -> int:
        """Wait for a step's round; lend meanwhile where it is short."""
        task = asyncio.ensure_future(making)
        try:
            if not task.done() and self._stock.share(step) < self._terms.lend_below:
                await self._with_guests(step, task)
            return await task
        except BaseException:
            task.cancel()
            raise
        finally:
            self._stock.forget(step)

    def statistics(self) -> dict[str, float]:
        """``hybrid/...`` since the last call; 'out' are replicas that stay out for the rest of the run."""
        taken, self._ledger = self._ledger, Ledger()
        figures = {f"hybrid/{name}": float(count) for name, count in asdict(taken).items()}
        return figures | {"hybrid/out": float(sum(guest.place is Place.OUT for guest in self.guests))}

    async def _with_guests(self, step: int, task: asyncio.Future[int]) -> None:
        coming = [guest for guest in self.guests if guest.place is Place.HOME]
        if not coming:
            return
        await self._lend(step, task, coming)
        ready = asyncio.ensure_future(self._stock.reaches(step, self._terms.reclaim_at))
        try:
            if any(guest.place is Place.LENT for guest in self.guests):
                await asyncio.wait((task, ready), return_when=asyncio.FIRST_COMPLETED)
        finally:
            ready.cancel()
        await self._reclaim()

    async def _lend(self, step: int, task: asyncio.Future[int], coming: Sequence[Guest]) -> None:
        share = 100 * self._stock.share(step)
        log.info("step %d: %.0f %% of its samples are ready, %d replicas are lent to rollout", step, share, len(coming))
        with self._clock.measure(LEND):
            if self._terms.actor_sleeps:
                await asyncio.to_thread(self._actor.sleep, 1, self._terms.actor_sleeps)
            for guest in coming:
                await self._bring(guest)
        for guest in (guest for guest in coming if guest.place is Place.COMING):
            if task.done() or self._stock.share(step) >= self._terms.reclaim_at:
                continue  # it is not needed any more
            self._router.admit(guest.name, guest.engine)
            guest.move(Place.LENT)
            self._ledger.lends += 1
        lent = sum(guest.place is Place.LENT for guest in coming)
        self._slots.resize(self._own_slots + lent)
        if lent:
            self._lent.enter_context(self._clock.measure(LENT))

    async def _bring(self, guest: Guest) -> None:
        guest.move(Place.COMING)
        try:
            await asyncio.to_thread(guest.rise, self._router.latest())
        except WorkerLostError as error:
            self._lost(guest, error)
        except OmniPortableError as error:
            self._ledger.failed_updates += 1
            log.warning("%s; it stays out of rollout for the rest of this run", guest.blamed(error))
            guest.move(Place.OUT)
            await self._settle(guest)

    async def _reclaim(self) -> None:
        with self._clock.measure(RECLAIM):
            self._slots.resize(self._own_slots)
            for guest in [guest for guest in self.guests if guest.place is Place.LENT]:
                self._ledger.requests += self._router.served(guest.name)
                try:
                    self._router.leave(guest.name)
                    guest.move(Place.RETURNING)
                except WorkerLostError as error:
                    self._lost(guest, error)
            self._lent.close()
            for guest in [guest for guest in self.guests if guest.place in (Place.COMING, Place.RETURNING)]:
                if guest.place is Place.COMING:
                    guest.move(Place.RETURNING)
                await self._settle(guest)
                if guest.place is Place.RETURNING:
                    guest.move(Place.HOME)
            if self._terms.actor_sleeps:
                await asyncio.to_thread(self._actor.wake, self._terms.actor_sleeps)

    async def _settle(self, guest: Guest) -> None:
        try:
            await asyncio.to_thread(guest.settle)
        except WorkerLostError as error:
            if guest.place is not Place.OUT:
                self._lost(guest, error)
        except OmniPortableError as error:
            raise LifecycleError(
                f"the lent replica '{guest.name}' does not give the actor's devices back: {error.problem}",
                remedy="continue the run from its last checkpoint, or turn lending off (trainer.hybrid.enabled=false)",
            ) from error

    def _lost(self, guest: Guest, error: WorkerLostError) -> None:
        self._ledger.lost += 1
        log.warning("%s; it stays out of rollout for the rest of this run", guest.blamed(error))
        guest.move(Place.OUT)
