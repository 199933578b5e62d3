"""A module spread over processes by VeOmni, with the values that it had."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.distributed.fsdp import register_fsdp_forward_method
from torch.distributed.tensor import DTensor, distribute_tensor

from omni_backends.training.fsdp2.shard import fsdp_modules, local, units
from omni_backends.training.veomni.settings import Settings
from omni_portable.contracts.errors import LifecycleError
from omni_portable.models.autoregressive.policy import LanguagePolicy


def join_mesh(settings: Settings) -> Any:
    """VeOmni's parallel state of this process, whose group the caller has joined.

    Raises:
        LifecycleError: this process has a state of another layout already.
    """
    from veomni.distributed.parallel_state import get_parallel_state, init_parallel_state

    state = init_parallel_state(
        dp_size=settings.data,
        dp_replicate_size=settings.replicate,
        dp_shard_size=settings.shard,
        ulysses_size=settings.sequence,
        dp_mode="fsdp2",
        device_type=settings.device_type,
    )
    found = get_parallel_state()
    if found is not state or found.ulysses_size != settings.sequence:
        raise LifecycleError("this process has a parallel state of VeOmni already", remedy="use one layout per process")
    return state


def shard_module(module: torch.nn.Module, settings: Settings) -> None:
    """Let VeOmni wrap the module in place; parameters become DTensors of the same names and values.

    VeOmni empties what it wraps and reads weights from a checkpoint; here they are put back from memory. Gradients are
    then summed over the processes that hold samples of their own, since each divides its loss by the weight of the
    whole mini-batch already. Those of one sequence group all hold the whole gradient, once their parts are added: what
    VeOmni gathers on the way out adds up the gradients of all of them.
    """
    from veomni.arguments import MixedPrecisionConfig
    from veomni.distributed.torch_parallelize import build_parallelize_model

    held = {name: tensor.detach().to("cpu", copy=True) for name, tensor in _tensors(module).items()}
    blocks = sorted({type(unit).__name__ for unit in units(module)})
    build_parallelize_model(
        module,
        mixed_precision=MixedPrecisionConfig(
            enable=settings.mixed,
            param_dtype=settings.dtype,
            reduce_dtype=settings.reduce_dtype,
            cast_forward_inputs=False,
        ),
        basic_modules=blocks,
        enable_gradient_checkpointing=False,  # the model's own is on where the run wants it
        enable_reshard_after_forward=settings.reshard,
        should_skip_hf_weight_load=True,
        init_device="meta",
        enable_fsdp_offload=settings.offload,
        fsdp_offload_pin_memory=settings.pinned,
        enable_forward_prefetch=settings.prefetch,
    )
    for sharded in fsdp_modules(module):
        sharded.set_gradient_divide_factor(float(settings.sequence))
        sharded.set_force_sum_reduction_for_comms(True)
    _restore(module, held)
    if isinstance(module, LanguagePolicy):
        register_fsdp_forward_method(module, "hidden_states")


def _tensors(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Parameters and persistent buffers."""
    return dict(module.state_dict(keep_vars=True))


@torch.no_grad()
def _restore(module: torch.nn.Module, held: Mapping[str, torch.Tensor]) -> None:
    for name, tensor in _tensors(module).items():
        value = held[name].to(tensor.dtype)
        if isinstance(tensor, DTensor):
            value = value.to(tensor.device_mesh.device_type)
            placed = distribute_tensor(value, tensor.device_mesh, tensor.placements, src_data_rank=None)
            local(tensor).copy_(local(placed))
        else:
            tensor.copy_(value)
