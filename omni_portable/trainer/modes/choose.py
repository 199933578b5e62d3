"""From `trainer.mode` to its object."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import cast

from omni_portable.config.batches import resolve_batches
from omni_portable.config.modes import SYNC
from omni_portable.config.schema import RunConfig
from omni_portable.contracts.device import SleepTag
from omni_portable.rollout.replay_buffer import ReplayBuffer
from omni_portable.rollout.router import Router
from omni_portable.trainer.modes.base import Server, Turns
from omni_portable.trainer.modes.gate import Gate
from omni_portable.trainer.modes.guest import Guest
from omni_portable.trainer.modes.lead import Lead
from omni_portable.trainer.modes.lending import Lending, Terms
from omni_portable.trainer.modes.separate import SeparateTurns
from omni_portable.trainer.modes.slots import Slots
from omni_portable.trainer.modes.stock import Stock
from omni_portable.trainer.modes.sync import SyncTurns
from omni_portable.trainer.placing import Placed
from omni_portable.trainer.timing import StageClock


def make_lending(config: RunConfig, placed: Placed, slots: Slots, stock: Stock, clock: StageClock) -> Lending:
    """Lending of the engines that were placed beside the actor."""
    hybrid = config.trainer.hybrid
    assert isinstance(placed.engine, Router)
    return Lending(
        [Guest(name, engine, hybrid.sleep_level) for name, engine in placed.guests.items()],
        placed.engine,
        placed.actor,
        slots,
        stock,
        clock,
        Terms(hybrid.lend_below, hybrid.reclaim_at, cast("tuple[SleepTag, ...]", tuple(hybrid.actor_sleeps))),
    )


def make_turns(
    config: RunConfig,
    produce: Callable[[int], Awaitable[int]],
    server: Server,
    buffer: ReplayBuffer,
    gate: Gate,
    start_step: int,
    lending: Lending | None = None,
) -> Turns:
    """The mode of a checked configuration (see `config.modes`)."""
    if config.trainer.mode == SYNC:
        return SyncTurns(produce, server, cast("list[SleepTag]", config.trainer.actor_sleeps))
    lead = Lead(
        max_staleness=config.dataplane.max_staleness,
        sync_interval=config.trainer.sync_interval,
        steps_per_round=resolve_batches(config).optimizer_steps,
    )
    return SeparateTurns(
        produce,
        server,
        buffer,
        gate,
        lead,
        start_step,
        config.trainer.total_steps,
        interrupt=config.trainer.mode == "fully_async",
        lending=lending,
    )
