"""Execution modes and what they may be combined with. Torch-free."""

from __future__ import annotations

from collections.abc import Sequence

from omni_portable.config.batches import resolve_batches
from omni_portable.config.convert import Source
from omni_portable.config.plugins import plugin_spec
from omni_portable.config.schema import RunConfig
from omni_portable.contracts.errors import ConfigError

SYNC = "sync"
ACTOR_TAGS = ("weights", "optimizer")
"""What of an actor may sleep while rollout draws on its devices."""


def check_mode(config: RunConfig, source: Source) -> None:
    """Refuse a mode together with settings that it could not honour.

    Raises:
        ConfigError: names the keys and what to set.
    """
    check_hybrid(config, source)
    _check_tags(config.trainer.actor_sleeps, "trainer.actor_sleeps", source)
    _check_level(config, config.rollout.sleep_level, "rollout.sleep_level", source)
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
    if trainer.actor_sleeps:
        raise ConfigError(
            f"{source.describe('trainer.actor_sleeps', trainer.actor_sleeps)}: under trainer.mode={trainer.mode} the "
            "actor trains while rollout draws, so it cannot sleep",
            remedy="leave trainer.actor_sleeps out (trainer.hybrid.actor_sleeps is for lent devices), or set "
            "trainer.mode=sync",
        )
    steps = resolve_batches(config).optimizer_steps
    if staleness == 0 and trainer.sync_interval > steps:
        raise ConfigError(
            f"{interval}: with dataplane.max_staleness=0 every round must be drawn from the weights that it trains, "
            f"but they would be handed over only after {trainer.sync_interval} optimizer steps and a round takes "
            f"{steps}",
            remedy=f"set dataplane.max_staleness=1 or more, or trainer.sync_interval={steps} or less",
        )


def _check_tags(tags: Sequence[str], key: str, source: Source) -> None:
    for tag in tags:
        if tag not in ACTOR_TAGS:
            raise ConfigError(f"{source.describe(key, tags)}: an actor has no '{tag}'", choices=ACTOR_TAGS)
        if tags.count(tag) > 1:
            raise ConfigError(f"{source.describe(key, tags)}: '{tag}' is named twice", remedy="name it once")


def _check_level(config: RunConfig, level: int, key: str, source: Source) -> None:
    """An engine that declares its levels of sleep (capability `sleep_levels`) is not asked for another one.

    One that declares `sleeps_on_host` false has none on a processor.
    """
    declared = plugin_spec("rollout_engine", config.rollout.engine, "rollout.engine").capabilities
    levels, device = declared.get("sleep_levels"), config.device.name.partition(":")[0]
    on_host = device != "auto" and not plugin_spec("device", device, "device.name").capabilities.get("accelerator")
    if level and on_host and declared.get("sleeps_on_host") is False:
        raise ConfigError(
            f"{source.describe(key, level)}: on a processor rollout.engine={config.rollout.engine} cannot sleep, and "
            "would release nothing",
            remedy=f"set {key}=0",
        )
    if levels is not None and level and level not in levels:
        raise ConfigError(
            f"{source.describe(key, level)}: rollout.engine={config.rollout.engine} does not sleep so",
            remedy=f"set {key} to one of the choices",
            choices=["0", *map(str, levels)],
        )


def check_hybrid(config: RunConfig, source: Source) -> None:
    """Refuse lending where there is nothing to lend, or terms that contradict each other.

    Raises:
        ConfigError: names the keys and what to set.
    """
    hybrid = config.trainer.hybrid
    _check_tags(hybrid.actor_sleeps, "trainer.hybrid.actor_sleeps", source)
    if not hybrid.enabled:
        return
    if config.trainer.mode == SYNC:
        raise ConfigError(
            f"{source.describe('trainer.hybrid.enabled', True)}: under trainer.mode=sync the actor's devices draw all "
            "samples anyway",
            remedy="set trainer.mode=separate_async or fully_async, or trainer.hybrid.enabled=false",
        )
    if hybrid.reclaim_at < hybrid.lend_below:
        raise ConfigError(
            f"{source.describe('trainer.hybrid.reclaim_at', hybrid.reclaim_at)}: devices that are lent below "
            f"{hybrid.lend_below:g} would be taken back before they have drawn anything",
            remedy=f"set trainer.hybrid.reclaim_at={hybrid.lend_below:g} or more, or a smaller lend_below",
        )
    _check_level(config, hybrid.sleep_level, "trainer.hybrid.sleep_level", source)
