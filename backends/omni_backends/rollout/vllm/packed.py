"""Weights that vLLM packs for its CPU kernels: packing them again where its reload forgets to, and reading them back.

On a CPU a linear layer drops its weight and keeps a packed one inside a closure; experts keep theirs packed under the
old names. vLLM 0.30's reload packs linear layers again, but neither experts (whose kernels then read unpacked numbers
as packed ones) nor output embeddings that share their weight with the input. Elsewhere nothing here does anything.

What a layer holds is read from what its kernel uses: a linear layer is applied to unit vectors (each product is then
one weight plus zeros, so the result is exact), packed experts are put back into order by a permutation that is learnt
by packing numbers which say where they came from.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import torch
from vllm import _custom_ops as ops
from vllm.model_executor.layers.fused_moe.experts.cpu_moe import CPUUnquantizedExperts
from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding

from omni_portable.contracts.errors import WeightSyncError

ROWS = 1024
"""Unit vectors that a layer is applied to at a time."""
DIGIT = 256
"""Places are written with digits below this, which every floating dtype holds exactly."""


def cpu_experts(model: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Module, CPUUnquantizedExperts]]:
    """Name, layer and kernel of every mixture of experts whose weights are packed for a CPU."""
    for name, module in model.named_modules():
        kernel = getattr(getattr(module, "quant_method", None), "moe_kernel", None)
        experts = getattr(kernel, "fused_experts", None)
        if isinstance(experts, CPUUnquantizedExperts) and hasattr(module, "w13_weight"):
            yield name, module, experts


def pack_again(model: torch.nn.Module) -> None:
    """After a reload: pack experts, and embeddings that also serve as output layers, from what was loaded."""
    for _, module, experts in cpu_experts(model):
        experts.process_weights_after_loading(module)
    for module in model.modules():
        if isinstance(module, VocabParallelEmbedding) and hasattr(module, "cpu_linear"):
            module.quant_method.process_weights_after_loading(module)


def read_weight(module: torch.nn.Module) -> torch.Tensor:
    """(out, in) weight that a linear layer or embedding applies, vocabulary padding included.

    Raises:
        WeightSyncError: an embedding whose packed and unpacked weights differ.
    """
    base: Any = getattr(module, "base_layer", module)
    kept: torch.Tensor = base.weight.data
    if not hasattr(base, "cpu_linear"):
        return kept
    size = kept.shape[1] if kept.dim() == 2 else int(getattr(base, "input_size_per_partition", base.input_size))
    dtype = kept.dtype
    parts = [
        base.cpu_linear(_unit_rows(first, min(first + ROWS, size), size, dtype), kept, None)
        for first in range(0, size, ROWS)
    ]
    applied = torch.cat(parts).t().contiguous()
    if kept.dim() == 2 and not torch.equal(applied, kept):
        raise WeightSyncError("a layer of the engine applies another weight than it holds: its packed copy is stale")
    return applied


def read_experts(module: torch.nn.Module, leaf: str, shape: tuple[int, ...]) -> torch.Tensor:
    """Stacked experts' weight without packing and padding.

    Args:
        module: that holds the experts, or a parent of it alone.
        leaf: 'w13_weight' or 'w2_weight'.
        shape: (experts, rows, columns) without padding.
    """
    holder = next((child for child in module.modules() if hasattr(child, leaf)), None)
    if holder is None:
        raise WeightSyncError(f"the engine's layer holds no '{leaf}'")
    held: torch.Tensor = getattr(holder, leaf).data
    found = next((experts for _, child, experts in cpu_experts(holder) if child is holder), None)
    if found is not None and not found._use_zentorch:
        place = _packing(tuple(held.shape[1:]), held.dtype, found.isa)
        flat = torch.empty_like(held).flatten(1)
        flat[:, place] = held.flatten(1)
        held = flat.view_as(held)
    return _unpadded(held, leaf, shape)


def is_padded(module: torch.nn.Module, experts: CPUUnquantizedExperts) -> bool:
    """Whether the experts' inner width was padded, which vLLM's reload cannot undo."""
    width: int = experts.moe_config.intermediate_size_per_partition
    return module.get_parameter("w2_weight").shape[-1] != width


def _unit_rows(first: int, last: int, size: int, dtype: torch.dtype) -> torch.Tensor:
    rows = torch.zeros(last - first, size, dtype=dtype)
    rows[torch.arange(last - first), torch.arange(first, last)] = 1
    return rows


@functools.lru_cache(maxsize=32)
def _packing(shape: tuple[int, int], dtype: torch.dtype, isa: str) -> torch.Tensor:
    """(rows * columns,) int64: the place that each packed element had before."""
    count = shape[0] * shape[1]
    places, rest, scale = torch.zeros(count, dtype=torch.int64), torch.arange(count), 1
    while scale < count:
        digits = (rest % DIGIT).to(dtype).view(1, *shape)
        packed = ops.cpu_prepack_moe_weight(digits, isa)
        places += packed.flatten().to(torch.int64) * scale
        rest, scale = rest // DIGIT, scale * DIGIT
    return places


def _unpadded(held: torch.Tensor, leaf: str, shape: tuple[int, ...]) -> torch.Tensor:
    if tuple(held.shape) == shape:
        return held
    if leaf == "w2_weight":
        return held[:, :, : shape[2]].contiguous()
    width, padded = shape[1] // 2, held.shape[1] // 2
    return torch.cat([held[:, :width], held[:, padded : padded + width]], dim=1)
