"""A module's parameters spread over processes by `fully_shard`, and what must be known of it afterwards.

Every repeated block of a model is one unit: its parameters are gathered together before its forward and, unless
`actor.sharding` is 'keep', freed behind it. What is left belongs to the outermost module, whose parameters stay
gathered until its backward is over. Gradients are summed, not averaged, since every process divides its loss by the
weight of the whole mini-batch already.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import cast

import torch
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecisionPolicy,
    OffloadPolicy,
    fully_shard,
    register_fsdp_forward_method,
)
from torch.distributed.tensor import DTensor

from omni_backends.training.fsdp2.layout import Layout
from omni_portable.config.schema import ActorConfig
from omni_portable.contracts.errors import CapabilityError
from omni_portable.models.autoregressive.policy import LanguagePolicy

SHOWN = 3
"""Parameters named in an error."""


def data_mesh(layout: Layout, device_type: str) -> tuple[DeviceMesh, DeviceMesh | None]:
    """The mesh that parameters are sharded over, and the one of tensor parallelism where there is one.

    Sequence ranks hold different parts of the gradient of the same samples, so parameters are sharded over them too.
    """
    shards = layout.data * layout.sequence
    if layout.tensor == 1:
        return init_device_mesh(device_type, (shards,), mesh_dim_names=("shard",)), None
    mesh = init_device_mesh(device_type, (shards, layout.tensor), mesh_dim_names=("shard", "tensor"))
    return mesh["shard"], mesh["tensor"]


def shard_module(module: torch.nn.Module, mesh: DeviceMesh, actor: ActorConfig, dtype: torch.dtype, pin: bool) -> None:
    """Shard in place; parameters become DTensors of the same names.

    Args:
        dtype: that gathered parameters compute in; those that train are fp32 where it is narrower (see `promote`).
        pin: whether offloaded parameters lie in pinned memory.
    """
    trained = {parameter.dtype for parameter in module.parameters() if parameter.requires_grad}
    policy = MixedPrecisionPolicy(
        param_dtype=dtype if trained == {torch.float32} and _all_train(module) and dtype != torch.float32 else None,
        reduce_dtype=getattr(torch, actor.reduce_dtype),
        cast_forward_inputs=False,
    )
    offload = CPUOffloadPolicy(pin_memory=pin) if actor.offload == "cpu" else OffloadPolicy()
    for unit in units(module):
        fully_shard(
            unit,
            mesh=mesh,
            reshard_after_forward=actor.sharding == "full",
            mp_policy=policy,
            offload_policy=offload,
        )
    fully_shard(module, mesh=mesh, reshard_after_forward=False, mp_policy=policy, offload_policy=offload)
    for sharded in fsdp_modules(module):
        sharded.set_gradient_divide_factor(1.0)
        sharded.set_force_sum_reduction_for_comms(True)
    if isinstance(module, LanguagePolicy):
        # Its forward. The head is used after it, while the outermost module's parameters are still gathered.
        register_fsdp_forward_method(module, "hidden_states")


def promote(module: torch.nn.Module) -> dict[int, torch.dtype]:
    """Make parameters that train fp32, as the optimizer updates them; they compute in their own dtype as before.

    Returns:
        id of each trained parameter -> its dtype before.

    Raises:
        CapabilityError: parameters of several dtypes train; a unit is gathered in one.
    """
    trained = {name: parameter for name, parameter in module.named_parameters() if parameter.requires_grad}
    before = {id(parameter): parameter.dtype for parameter in trained.values()}
    if len(set(before.values())) > 1:
        wide = [name for name, parameter in trained.items() if parameter.dtype == torch.float32]
        raise CapabilityError(
            f"{len(wide)} of {len(trained)} trained parameters stay in float32 beside narrower ones (first "
            f"{', '.join(wide[:SHOWN])}); train engine 'fsdp2' gathers the parameters of a block in one dtype",
            remedy="set device.dtype=float32, or train a LoRA (model.lora.rank)",
        )
    for parameter in trained.values():
        parameter.data = parameter.data.float()
    return before


def units(module: torch.nn.Module) -> list[torch.nn.Module]:
    """The repeated blocks: those that the library names as not to be split, else the items of outermost lists."""
    names: set[str] = set()
    for child in module.modules():
        names.update(getattr(child, "_no_split_modules", None) or ())
    named = list(_outermost(module, lambda child: type(child).__name__ in names))
    if named:
        return named
    lists = _outermost(module, lambda child: isinstance(child, torch.nn.ModuleList))
    return [item for items in lists for item in items.children()]


def fsdp_modules(module: torch.nn.Module) -> list[FSDPModule]:
    """Every unit, and the outermost module."""
    return [child for child in module.modules() if isinstance(child, FSDPModule)]


def reshard(module: torch.nn.Module) -> None:
    """Free whatever is gathered, so that the next forward gathers what the shards hold then."""
    for sharded in fsdp_modules(module):
        sharded.reshard()


def local(tensor: torch.Tensor) -> torch.Tensor:
    """This process's part of a parameter or gradient (the live one)."""
    return tensor.to_local().detach() if isinstance(tensor, DTensor) else tensor.detach()


def like(parameter: torch.Tensor, part: torch.Tensor) -> torch.Tensor:
    """A distributed tensor of the parameter's layout around this process's part."""
    if not isinstance(parameter, DTensor):
        return part
    return DTensor.from_local(
        part,
        parameter.device_mesh,
        parameter.placements,
        run_check=False,
        shape=parameter.shape,
        stride=parameter.stride(),
    )


def full(parameter: torch.Tensor, part: torch.Tensor) -> torch.Tensor:
    """The whole tensor of which every process holds a part like the parameter's; all must call it."""
    whole = like(parameter, part)
    return whole.full_tensor() if isinstance(whole, DTensor) else whole


def copies(parameter: torch.Tensor) -> int:
    """Processes that hold the same part of a parameter."""
    world = torch.distributed.get_world_size()
    if not isinstance(parameter, DTensor):
        return world
    parts = 1
    for dim, placement in enumerate(parameter.placements):
        if placement.is_shard():
            parts *= parameter.device_mesh.size(dim)
    return world // parts


@contextmanager
def swapped_parts(
    module: torch.nn.Module, parameters: Mapping[str, torch.nn.Parameter], parts: Mapping[str, torch.Tensor]
) -> Iterator[None]:
    """Let the parameters stand for other parts for a while. They are copied in and back, bit for bit: what is gathered
    is read from the shards' own memory, so exchanging storages would change nothing."""
    own = {name: local(parameter).clone() for name, parameter in parameters.items()}
    reshard(module)
    try:
        for name, parameter in parameters.items():
            local(parameter).copy_(parts[name])
        yield
    finally:
        reshard(module)
        for name, parameter in parameters.items():
            local(parameter).copy_(own[name])


def sync_gradients(module: torch.nn.Module, now: bool) -> None:
    """Whether the next backward adds up the gradients of all processes, or keeps this one's for later."""
    root = cast(FSDPModule, module)
    root.set_requires_gradient_sync(now)
    root.set_is_last_backward(now)


def _all_train(module: torch.nn.Module) -> bool:
    return all(parameter.requires_grad for parameter in module.parameters())


def _outermost(module: torch.nn.Module, wanted: Callable[[torch.nn.Module], bool]) -> Iterator[torch.nn.Module]:
    for child in module.children():
        if wanted(child):
            yield child
        else:
            yield from _outermost(child, wanted)
