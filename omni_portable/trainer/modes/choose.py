"""From `trainer.mode` to its object."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from omni_portable.config.batches import resolve_batches
from omni_portable.config.modes import SYNC
from omni_portable.config.schema import RunConfig
from omni_portable.rollout.replay_buffer import ReplayBuffer
from omni_portable.trainer.modes.base import Server, Turns
from omni_portable.trainer.modes.gate import Gate
from omni_portable.trainer.modes.lead import Lead
from omni_portable.trainer.modes.separate import SeparateTurns
from omni_portable.trainer.modes.sync import SyncTurns


def make_turns(
    config: RunConfig,
    produce: Callable[[int], Awaitable[int]],
    server: Server,
    buffer: ReplayBuffer,
    gate: Gate,
    start_step: int,
) -> Turns:
    """The mode of a checked configuration (see `config.modes`)."""
    if config.trainer.mode == SYNC:
        return SyncTurns(produce, server)
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
    )
