"""A placement as the keys of a run."""

from __future__ import annotations

from omni_portable.planning.placement.profile import Placement


def keys_of(placement: Placement) -> tuple[str, ...]:
    """Overrides that make it; empty where no launcher places it: engines of several devices in turn with an actor."""
    if placement.mode == "sync":
        return _in_turn(placement)
    keys = [f"trainer.mode={placement.mode}", "launcher.name=ray"]
    if placement.train_devices > 1:
        keys += ["actor.engine=fsdp2", f"actor.world_size={placement.train_devices}"]
    keys.append(f"rollout.replicas={placement.replicas}")
    if placement.tensor_parallel > 1:
        parallel = placement.tensor_parallel
        keys += [f"rollout.options.tensor_parallel_size={parallel}", f"launcher.options.rollout_devices={parallel}"]
    return (*keys, f"dataplane.max_staleness={placement.max_staleness}")


def _in_turn(placement: Placement) -> tuple[str, ...]:
    """A replica on the device of every rank."""
    if placement.tensor_parallel > 1:
        return ()
    if placement.devices == 1:
        return "trainer.mode=sync", "launcher.name=local"
    return (
        "trainer.mode=sync",
        "launcher.name=ray",
        "actor.engine=fsdp2",
        f"actor.world_size={placement.devices}",
        f"rollout.replicas={placement.replicas}",
        "launcher.options.rollout_devices=0",
    )


def keys_in_words(placement: Placement) -> tuple[str, ...]:
    """Lines that give the keys, or say why there are none, and what they assume."""
    keys = keys_of(placement)
    if not keys:
        return (
            f"keys: none. A rollout replica that takes turns with the actor has the device of one rank, and these take "
            f"{placement.tensor_parallel} each",
        )
    lines = [f"keys: {' '.join(keys)}"]
    if placement.mode != "sync":
        lines.append(f"dataplane.max_staleness={placement.max_staleness} is assumed, not measured (--max-staleness)")
    if placement.sync_rounds > 1:
        lines.append(f"and trainer.sync_interval so large that weights travel every {placement.sync_rounds} steps")
    return tuple(lines)
