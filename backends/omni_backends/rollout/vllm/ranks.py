"""Parts of weights that tensor-parallel workers hold, put together: what a worker's layer has become whole again.

Every worker calls the same for the same tensors in the same order, as it does where all are asked by one collective
call. Parts travel on the host, as bytes, in the group that vLLM has for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from vllm.model_executor.layers.linear import (
    ColumnParallelLinear,
    MergedColumnParallelLinear,
    QKVParallelLinear,
    RowParallelLinear,
)
from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding

from omni_portable.contracts.errors import WeightSyncError


class Ranks(Protocol):
    """The workers that hold parts of one model."""

    rank: int
    size: int

    def agree(self, failed: bool) -> bool:
        """Whether no worker failed; all of them ask."""
        ...

    def gather(self, part: torch.Tensor) -> list[torch.Tensor]:
        """What every worker holds, of one shape, in rank order, on the host."""
        ...


class OneRank:
    """A worker that holds everything."""

    rank, size = 0, 1

    def agree(self, failed: bool) -> bool:
        return not failed

    def gather(self, part: torch.Tensor) -> list[torch.Tensor]:
        return [part]


class TensorRanks:
    """Those of vLLM's tensor-parallel group."""

    def __init__(self) -> None:
        from vllm.distributed import get_tp_group

        group: Any = get_tp_group()
        self.rank, self.size = int(group.rank_in_group), int(group.world_size)
        self._group = group.cpu_group

    def agree(self, failed: bool) -> bool:
        flag = torch.tensor([int(failed)], dtype=torch.int32)
        torch.distributed.all_reduce(flag, op=torch.distributed.ReduceOp.MAX, group=self._group)
        return not bool(flag.item())

    def gather(self, part: torch.Tensor) -> list[torch.Tensor]:
        mine = part.detach().to("cpu").contiguous()
        flat = mine.reshape(-1).view(torch.uint8)
        found = [torch.empty_like(flat) for _ in range(self.size)]
        torch.distributed.all_gather(found, flat, group=self._group)
        return [each.view(mine.dtype).reshape(mine.shape) for each in found]


def tensor_ranks() -> Ranks:
    """As many as this process is one of."""
    found = TensorRanks()
    return found if found.size > 1 else OneRank()


def whole_tensor(layer: Any, leaf: str, held: torch.Tensor, rows: Sequence[int], ranks: Ranks) -> torch.Tensor:
    """The (fused) tensor of a layer, without padding.

    Args:
        layer: vLLM's.
        leaf: 'weight' or 'bias'.
        held: what this worker has of it.
        rows: of the canonical tensors in it, in their order.

    Raises:
        WeightSyncError: the layer is not known, or workers differ in what they should hold alike.
    """
    if ranks.size == 1 or getattr(layer, "tp_size", 0) == 1:
        return held[: sum(rows)]
    if isinstance(layer, VocabParallelEmbedding):
        return torch.cat(ranks.gather(held))[: sum(rows)]  # padding is at the end, after all that are whole
    if isinstance(layer, RowParallelLinear):
        return torch.cat(ranks.gather(held), dim=1) if leaf == "weight" else held
    if not isinstance(layer, ColumnParallelLinear):
        if [int(held.shape[0])] != list(rows):
            raise WeightSyncError(f"a {type(layer).__name__} holds {held.shape[0]} of {sum(rows)} rows")
        return held
    sizes, replicas = _column_parts(layer)
    parts = [part.split(sizes) for part in ranks.gather(held)]
    return torch.cat([_joined([part[index] for part in parts], copies) for index, copies in enumerate(replicas)], dim=0)


def _column_parts(layer: Any) -> tuple[list[int], list[int]]:
    """Rows of every shard in one worker, and how many workers in a row hold the same of it."""
    if isinstance(layer, QKVParallelLinear):
        keys = layer.num_kv_heads * layer.head_size
        sizes = [layer.num_heads * layer.head_size, keys, layer.num_kv_heads * layer.v_head_size]
        return sizes, [1, layer.num_kv_head_replicas, layer.num_kv_head_replicas]
    if isinstance(layer, MergedColumnParallelLinear):
        sizes = [size // layer.tp_size for size in layer.output_sizes]
        return sizes, [1] * len(sizes)
    return [layer.output_size_per_partition], [1]


def _joined(parts: Sequence[torch.Tensor], copies: int) -> torch.Tensor:
    for index, part in enumerate(parts):
        if not torch.equal(part, parts[index - index % copies]):
            raise WeightSyncError(f"tensor-parallel workers {index - index % copies} and {index} should hold the same")
    return torch.cat(list(parts[::copies]))
