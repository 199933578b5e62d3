"""Parallelism inside a sample: the sequence split over ranks (Ulysses), and layers split by a plan of the family."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor.parallel import ParallelStyle, parallelize_module

from omni_backends.training.fsdp2.layout import Layout
from omni_portable.contracts.errors import CapabilityError
from omni_portable.models.wan22.experts import Experts


def enable_sequence_parallel(module: torch.nn.Module, layout: Layout, device_type: str) -> None:
    """Split tokens over the ranks of a sequence group: attention exchanges heads for tokens and back (all-to-all).

    It is the library's own plan for its model; every rank computes the gradient of its tokens, and their sum is the
    whole gradient.

    Raises:
        CapabilityError: the model has no plan, or its heads cannot be divided.
    """
    from diffusers import ContextParallelConfig  # seconds of imports that nothing else here needs

    mesh = init_device_mesh(device_type, (layout.data, 1, layout.sequence), mesh_dim_names=("data", "ring", "ulysses"))
    models = [module.transformer, module.transformer_2] if isinstance(module, Experts) else [module]
    for model in models:
        _check_sequence(model, layout.sequence)
        config = ContextParallelConfig(ulysses_degree=layout.sequence, mesh=mesh)
        model.enable_parallelism(config=config)  # type: ignore[operator]


def _check_sequence(model: torch.nn.Module, degree: int) -> None:
    name = type(model).__name__
    if getattr(model, "_cp_plan", None) is None:
        raise CapabilityError(
            f"actor.sequence_parallel={degree}: {name} has no plan for splitting its tokens over ranks",
            remedy="set actor.sequence_parallel=1; samples are then divided instead",
        )
    heads = getattr(getattr(model, "config", None), "num_attention_heads", None)
    if isinstance(heads, int) and heads % degree:
        raise CapabilityError(
            f"actor.sequence_parallel={degree} does not divide the {heads} attention heads of {name}",
            choices=[str(size) for size in range(1, heads + 1) if heads % size == 0],
        )


def enable_tensor_parallel(adapter: Any, module: torch.nn.Module, mesh: DeviceMesh, *, lora: bool) -> None:
    """Split layers as the family says: `adapter.tensor_parallel_plan()` maps module names to styles of
    `torch.distributed.tensor.parallel`.

    A plan must leave every other parameter with the same gradient on all ranks of a tensor group.

    Raises:
        CapabilityError: the family has no plan, or a LoRA is trained, whose matrices no plan covers.
    """
    plan = getattr(adapter, "tensor_parallel_plan", None)
    if not callable(plan):
        raise CapabilityError(
            f"actor.tensor_parallel={mesh.size()}: model family '{adapter.family}' has no plan for splitting layers",
            remedy="set actor.tensor_parallel=1",
        )
    if lora:
        raise CapabilityError(
            f"actor.tensor_parallel={mesh.size()} splits the layers that a LoRA is added to, which no plan covers",
            remedy="set actor.tensor_parallel=1, or model.lora.rank=0",
        )
    styles: Mapping[str, ParallelStyle] = plan()
    parallelize_module(module, mesh, dict(styles))
