"""Keys of `actor` that say how training is spread over processes: which engine obeys them, and whether they agree.

A train engine's spec lists those that it obeys under 'actor_keys' (absent: all). Any other that is set to something
else than its default would change nothing, and is refused.
"""

from __future__ import annotations

import math

from omni_portable.config.batches import resolve_batches
from omni_portable.config.convert import Source
from omni_portable.config.plugins import plugin_spec
from omni_portable.config.schema import ActorConfig, RunConfig
from omni_portable.contracts.errors import CapabilityError, ConfigError

ACTOR_KEYS = (
    "world_size",
    "sharding",
    "offload",
    "reduce_dtype",
    "gradient_sync",
    "sequence_parallel",
    "tensor_parallel",
    "rank_timeout_s",
)


def check_parallel(config: RunConfig, source: Source) -> None:
    """Check the keys of :data:`ACTOR_KEYS` against the engine, each other, and the batch sizes.

    Raises:
        CapabilityError: a key that the engine does not obey.
        ConfigError: sizes that do not divide each other, or processes that would never have a sample.
    """
    actor = config.actor
    spec = plugin_spec("train_engine", actor.engine, "actor.engine")
    obeyed = spec.capabilities.get("actor_keys", ACTOR_KEYS)
    defaults = ActorConfig()
    for key in ACTOR_KEYS:
        value = getattr(actor, key)
        if key not in obeyed and value != getattr(defaults, key):
            raise CapabilityError(
                f"{source.describe(f'actor.{key}', value)}: train engine '{spec.name}' has no use for actor.{key}",
                remedy=f"leave actor.{key} out, or choose another actor.engine (fsdp2 obeys it)",
            )
    together = actor.sequence_parallel * actor.tensor_parallel
    if actor.world_size % together:
        raise ConfigError(
            f"{source.describe('actor.world_size', actor.world_size)}: processes come in whole groups of {together} "
            "(actor.sequence_parallel x actor.tensor_parallel)",
            remedy=f"use a multiple of {together}",
        )
    if actor.sequence_parallel > 1 and actor.tensor_parallel > 1:
        raise ConfigError(
            "actor.sequence_parallel and actor.tensor_parallel are both above 1; a sample is split one way at a time",
            remedy="set one of them to 1",
        )
    _check_work(config, actor.world_size // together)


def _check_work(config: RunConfig, ranks: int) -> None:
    """Micro-batches are dealt to the ranks; with fewer of them than ranks some would idle in every step."""
    batches = resolve_batches(config)
    if ranks > batches.micro_batches:
        most = math.ceil(batches.mini_batch_size / ranks)
        raise ConfigError(
            f"actor.world_size={config.actor.world_size} makes {ranks} ranks that hold samples of their own, but a "
            f"mini-batch of {batches.mini_batch_size} samples has only {batches.micro_batches} micro-batch"
            f"{'' if batches.micro_batches == 1 else 'es'} of {batches.micro_batch_size}",
            remedy=f"set actor.micro_batch_size={most} (and rollout.max_num_seqs={most}, so that ratios start at "
            "exactly 1), or use fewer processes"
            if batches.mini_batch_size >= ranks
            else f"use at most {batches.mini_batch_size} processes",
        )
