"""From the `actor` section to what VeOmni is told; torch-free."""

from __future__ import annotations

from dataclasses import dataclass

from omni_backends.training.veomni.options import VeOmniOptions
from omni_portable.config.schema import ActorConfig
from omni_portable.contracts.errors import ConfigError


@dataclass(frozen=True)
class Settings:
    """VeOmni's own words are those of `init_parallel_state`, `MixedPrecisionConfig` and `build_parallelize_model`.

    Args:
        device_type: as torch spells it.
        data: processes that hold samples of their own (dp_size), in `replicate` copies (dp_replicate_size) of `shard`
            processes each (dp_shard_size).
        sequence: processes that split the tokens of a sample (ulysses_size).
        mixed: parameters are fp32 and compute in `dtype` (enable, param_dtype).
        reduce_dtype: in which gradients are summed.
        reshard: gathered weights are freed after a block's forward (enable_reshard_after_forward).
        offload / pinned: shards lie in the host's memory (enable_fsdp_offload), in pinned pages
            (fsdp_offload_pin_memory).
        prefetch: the next block's weights are gathered ahead (enable_forward_prefetch).
    """

    device_type: str
    data: int
    replicate: int
    shard: int
    sequence: int
    mixed: bool
    dtype: str
    reduce_dtype: str
    reshard: bool
    offload: bool
    pinned: bool
    prefetch: bool


def settings(
    actor: ActorConfig, options: VeOmniOptions, *, dtype: str, lora: bool, device_type: str, pinned: bool
) -> Settings:
    """The mapping.

    Args:
        dtype: that the transformer computes in.
        lora: an adapter is trained; its matrices are fp32 and its base stays in `dtype`, so nothing is mixed.
        device_type: as torch spells it.
        pinned: whether the device has pinned memory.

    Raises:
        ConfigError: sizes that do not divide, or fewer than two processes, which VeOmni does not shard over.
    """
    data = actor.world_size // actor.sequence_parallel
    if actor.world_size < 2:
        raise ConfigError(
            f"actor.world_size={actor.world_size}: train engine 'veomni' shards over at least 2 processes",
            remedy="raise actor.world_size, or set actor.engine to one of the choices",
            choices=("single", "fsdp2"),
        )
    if data % options.replicate:
        raise ConfigError(
            f"actor.options.replicate={options.replicate} does not divide the {data} processes that hold samples of "
            "their own (actor.world_size / actor.sequence_parallel)",
            choices=[str(n) for n in range(1, data + 1) if data % n == 0],
        )
    return Settings(
        device_type=device_type,
        data=data,
        replicate=options.replicate,
        shard=data // options.replicate,
        sequence=actor.sequence_parallel,
        mixed=dtype != "float32" and not lora,
        dtype=dtype,
        reduce_dtype=actor.reduce_dtype,
        reshard=actor.sharding == "full",
        offload=actor.offload == "cpu",
        pinned=pinned,
        prefetch=options.forward_prefetch,
    )
