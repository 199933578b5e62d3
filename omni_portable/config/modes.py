"""Execution modes and what they may be combined with. Torch-free."""

from __future__ import annotations

from omni_portable.config.batches import resolve_batches
from omni_portable.config.convert import Source
from omni_portable.config.schema import RunConfig
from omni_portable.contracts.errors import ConfigError

SYNC = "sync"


def check_mode(config: RunConfig, source: Source) -> None:
    """Refuse a mode together with settings that it could not honour.

    Raises:
        ConfigError: names the keys and what to set.
    """
    trainer, staleness = config.trainer, config.dataplane.max_staleness
    interval = source.describe("trainer.sync_interval", trainer.sync_interval)
    if trainer.mode == SYNC:
        if staleness:
            raise ConfigError(
                f"{source.describe('dataplane.max_staleness', staleness)}: trainer.mode=sync trains on fresh samples "
                "only",
                remedy="set dataplane.max_staleness=0, or trainer.mode=separate_async",
            )
        if trainer.sync_interval != 1:
            raise ConfigError(
                f"{interval}: trainer.mode=sync hands its weights over after every rollout",
                remedy="set trainer.sync_interval=1, or trainer.mode=separate_async",
            )
        return
    if config.rollout.sleep_level:
        raise ConfigError(
            f"{source.describe('rollout.sleep_level', config.rollout.sleep_level)}: under trainer.mode={trainer.mode} "
            "rollout goes on while the actor trains, so its engine cannot sleep",
            remedy="set rollout.sleep_level=0, or trainer.mode=sync",
        )
    steps = resolve_batches(config).optimizer_steps
    if staleness == 0 and trainer.sync_interval > steps:
        raise ConfigError(
            f"{interval}: with dataplane.max_staleness=0 every round must be drawn from the weights that it trains, "
            f"but they would be handed over only after {trainer.sync_interval} optimizer steps and a round takes "
            f"{steps}",
            remedy=f"set dataplane.max_staleness=1 or more, or trainer.sync_interval={steps} or less",
        )
