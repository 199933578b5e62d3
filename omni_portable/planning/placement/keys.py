"""A placement as the keys of a run."""

from __future__ import annotations

from omni_portable.contracts import registry
from omni_portable.planning.placement.profile import Placement

ALONE = ("actor.engine=single", "actor.world_size=1")
"""Training in one process. An engine with ranks of a recipe would keep its own number of them."""
IN_TURN = ("dataplane.max_staleness=0", "trainer.sync_interval=1", "trainer.hybrid.enabled=false")
AT_ONCE = ("rollout.sleep_level=0", "trainer.actor_sleeps=[]", "trainer.hybrid.enabled=false")
"""Keys at their defaults, which a recipe for another mode may have set and this one refuses."""


def keys_of(placement: Placement, tokens: bool = True) -> tuple[str, ...]:
    """Overrides that make it, whatever placement the recipe had before.

    Empty where nothing makes it: engines of several devices in turn with an actor, or where no engine draws such
    samples on several devices.

    Args:
        tokens: samples are responses of tokens; else they are denoised.
    """
    placing = _placing(placement, tokens)
    return (*placing, *defaults_of(placement)) if placing else ()


def defaults_of(placement: Placement) -> tuple[str, ...]:
    """Those of the keys that say what holds anyway, unless the recipe was made for another mode."""
    if placement.mode != "sync":
        return AT_ONCE
    return IN_TURN


def _placing(placement: Placement, tokens: bool) -> tuple[str, ...]:
    """The keys that say who has which devices."""
    if placement.mode == "sync":
        return _in_turn(placement)
    parallel = placement.tensor_parallel
    ranks = (
        ("actor.engine=fsdp2", f"actor.world_size={placement.train_devices}") if placement.train_devices > 1 else ALONE
    )
    keys = [f"trainer.mode={placement.mode}", "launcher.name=ray", *ranks, f"rollout.replicas={placement.replicas}"]
    if parallel > 1:
        if (wide := _wide_engine(tokens)) is None:
            return ()
        engine, option = wide
        keys += [f"rollout.engine={engine}", f"rollout.options.{option}={parallel}"]
    return (
        *keys,
        f"launcher.options.rollout_devices={parallel}",
        f"dataplane.max_staleness={placement.max_staleness}",
    )


def _wide_engine(tokens: bool) -> tuple[str, str] | None:
    """The first engine that draws such samples on several devices, and its option that says on how many."""
    kind = "autoregressive" if tokens else "diffusion"
    for name in registry.names("rollout_engine"):
        declared = registry.spec("rollout_engine", name).capabilities
        if "devices_option" in declared and kind in declared.get("kinds", (kind,)):
            return name, str(declared["devices_option"])
    return None


def _in_turn(placement: Placement) -> tuple[str, ...]:
    """A replica on the device of every rank."""
    if placement.tensor_parallel > 1:
        return ()
    if placement.devices == 1:
        return "trainer.mode=sync", "launcher.name=local", "launcher.options={}", *ALONE, "rollout.replicas=1"
    return (
        "trainer.mode=sync",
        "launcher.name=ray",
        "actor.engine=fsdp2",
        f"actor.world_size={placement.devices}",
        f"rollout.replicas={placement.replicas}",
        "launcher.options.rollout_devices=0",
    )


def keys_in_words(placement: Placement, tokens: bool = True) -> tuple[str, ...]:
    """Lines that give the keys, or say why there are none, and what they assume.

    Args:
        tokens: as in :func:`keys_of`.
    """
    keys = _placing(placement, tokens)
    if not keys and placement.mode != "sync":
        return (f"keys: none. No rollout engine here draws such samples on {placement.tensor_parallel} devices",)
    if not keys:
        return (
            f"keys: none. A rollout replica that takes turns with the actor has the device of one rank, and these take "
            f"{placement.tensor_parallel} each",
        )
    lines = [
        f"keys: {' '.join(keys)}",
        f"and, where the recipe has set them otherwise: {' '.join(defaults_of(placement))}",
    ]
    if placement.mode != "sync":
        lines.append(f"dataplane.max_staleness={placement.max_staleness} is assumed, not measured (--max-staleness)")
    if (parallel := placement.tensor_parallel) > 1 and (wide := _wide_engine(tokens)) is not None:
        lines.append(f"replicas of {parallel} devices take rollout.engine={wide[0]}, which must serve the model")
    if placement.sync_rounds > 1:
        lines.append(f"and trainer.sync_interval so large that weights travel every {placement.sync_rounds} steps")
    return tuple(lines)
