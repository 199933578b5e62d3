"""From canonical tensor names to what vLLM's layers hold, and back: reading, and going back to what was before."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from vllm.model_executor.model_loader.reload.layerwise import get_layerwise_info

from omni_backends.rollout.vllm.inventory import Inventory
from omni_backends.rollout.vllm.packed import read_experts, read_weight
from omni_backends.rollout.vllm.ranks import OneRank, Ranks, whole_tensor
from omni_portable.contracts.errors import WeightSyncError
from omni_portable.models.autoregressive.layout import split

EXPERTS = ("w13_weight", "w2_weight")


def read_tensors(
    model: torch.nn.Module, inventory: Inventory, names: Iterable[str] | None = None, ranks: Ranks | None = None
) -> Iterator[tuple[str, torch.Tensor]]:
    """Canonical tensors, on the host, as the model's kernels use them, one fused tensor after the other.

    Args:
        names: which; None for all of the inventory.
        ranks: the workers that hold parts of the model; all of them must read the same.

    Raises:
        WeightSyncError: a name that the inventory or the model does not have.
    """
    ranks = ranks or OneRank()
    wanted = list(inventory.base) if names is None else list(names)
    unknown = [name for name in wanted if name not in inventory.base]
    if unknown:
        raise WeightSyncError(f"the rollout engine 'vllm' holds no tensor '{unknown[0]}' ({len(unknown)} unknown)")
    members: dict[str, dict[str, torch.Size]] = {}
    for name, own in inventory.base.items():
        members.setdefault(inventory.runtime_name(name)[0], {})[name] = torch.Size(own.shape)
    asked = set(wanted)
    for target in dict.fromkeys(inventory.runtime_name(name)[0] for name in wanted):
        whole = _read(model, target, list(members[target].values()), ranks)
        for name, part in split({target: whole}, members[target], inventory.prefixes).items():
            if name in asked:
                yield name, part.to("cpu")


@dataclass(frozen=True)
class ModelState:
    """References to all parameters, buffers and packed kernels of a model, and copies of those that may be written."""

    layers: tuple[tuple[torch.nn.Module, dict[str, Any], dict[str, Any], Any], ...]
    copies: tuple[tuple[torch.Tensor, torch.Tensor], ...]


def remember(model: torch.nn.Module, inventory: Inventory, names: Iterable[str]) -> ModelState:
    """The state before an update of `names`."""
    written = {inventory.runtime_name(name)[0].rpartition(".")[0] for name in names}
    layers, copies = [], []
    for path, module in model.named_modules():
        parameters, buffers = dict(module._parameters), dict(module._buffers)
        layers.append((module, parameters, buffers, getattr(module, "cpu_linear", None)))
        if any(path == own or path.startswith(f"{own}.") for own in _ancestors(path, written)):
            tensors = [t for t in (*parameters.values(), *buffers.values()) if t is not None]
            copies += [(tensor, tensor.detach().clone()) for tensor in tensors]
    return ModelState(tuple(layers), tuple(copies))


def put_back(state: ModelState) -> None:
    """Undo an update, also one that broke off between two layers."""
    for module, parameters, buffers, linear in state.layers:
        get_layerwise_info(module).reset()
        module._parameters.clear()
        module._parameters.update(parameters)
        module._buffers.clear()
        module._buffers.update(buffers)
        if linear is not None:
            module.cpu_linear = linear
    with torch.no_grad():
        for tensor, copy in state.copies:
            tensor.data.copy_(copy)


def _ancestors(path: str, written: set[str]) -> list[str]:
    parts = path.split(".")
    chain = (".".join(parts[: count + 1]) for count in range(len(parts)))
    return [own for own in chain if own in written]


def _read(model: torch.nn.Module, target: str, shapes: Sequence[torch.Size], ranks: Ranks) -> torch.Tensor:
    """The tensor `target` of vLLM, put together from all workers; `shapes` are those of the canonical ones in it."""
    failed: Exception | None = None
    try:
        layer, leaf, held = _held(model, target, shapes[0])
    except Exception as error:  # noqa: BLE001 - raised again when the other workers know
        failed = error
    agreed = ranks.agree(failed is not None)
    if failed is not None:
        raise failed
    if not agreed:
        raise WeightSyncError(f"another worker of the rollout engine 'vllm' could not read '{target}'")
    if leaf in EXPERTS:  # one worker holds all of them (checks.require_heads)
        return held
    return whole_tensor(layer, leaf, held, [shape[0] for shape in shapes], ranks)


def _held(model: torch.nn.Module, target: str, shape: torch.Size) -> tuple[Any, str, torch.Tensor]:
    """Layer, kind of parameter and what this worker holds of it."""
    path, _, leaf = target.rpartition(".")
    try:
        module = model.get_submodule(path)
    except AttributeError as error:
        raise WeightSyncError(f"the rollout engine 'vllm' has no layer '{path}' for '{target}'") from error
    if leaf in EXPERTS:
        return module, leaf, read_experts(module, leaf, shape)
    base: Any = getattr(module, "base_layer", module)
    if leaf == "weight" and (hasattr(base, "cpu_linear") or base.weight.dim() == 2):
        return base, leaf, read_weight(module)
    return base, leaf, getattr(base, leaf).data
