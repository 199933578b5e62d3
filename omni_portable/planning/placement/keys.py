"""A placement as the keys of a run."""

from __future__ import annotations

from omni_portable.planning.placement.profile import Placement


def keys_of(placement: Placement) -> tuple[str, ...]:
    """Overrides that make it; empty where no launcher places it: rollout in turn with an actor of several devices."""
    if placement.mode == "sync":
        return ("trainer.mode=sync", "launcher.name=local") if placement.devices == 1 else ()
    keys = [f"trainer.mode={placement.mode}", "launcher.name=ray"]
    if placement.train_devices > 1:
        keys += ["actor.engine=fsdp2", f"actor.world_size={placement.train_devices}"]
    keys.append(f"rollout.replicas={placement.replicas}")
    if placement.tensor_parallel > 1:
        parallel = placement.tensor_parallel
        keys += [f"rollout.options.tensor_parallel_size={parallel}", f"launcher.options.rollout_devices={parallel}"]
    return (*keys, f"dataplane.max_staleness={placement.max_staleness}")


def keys_in_words(placement: Placement) -> tuple[str, ...]:
    """Lines that give the keys, or say why there are none, and what they assume."""
    keys = keys_of(placement)
    if not keys:
        return (
            f"keys: none. Launchers cannot let rollout and actor take turns on {placement.devices} devices yet: "
            "launcher.name=local holds every role on one, launcher.name=ray gives rollout devices of its own",
        )
    lines = [f"keys: {' '.join(keys)}"]
    if placement.mode != "sync":
        lines.append(f"dataplane.max_staleness={placement.max_staleness} is assumed, not measured (--max-staleness)")
    if placement.sync_rounds > 1:
        lines.append(f"and trainer.sync_interval so large that weights travel every {placement.sync_rounds} steps")
    return tuple(lines)
