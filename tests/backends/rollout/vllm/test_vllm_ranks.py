"""What tensor-parallel workers hold, put together: layers as vLLM's loaders cut them, without workers."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from omni_portable.contracts.errors import WeightSyncError
from tests.support.engines import require_installed

require_installed("vllm")

from vllm.model_executor.layers.layernorm import RMSNorm  # noqa: E402
from vllm.model_executor.layers.linear import (  # noqa: E402
    MergedColumnParallelLinear,
    QKVParallelLinear,
    RowParallelLinear,
)
from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding  # noqa: E402

from omni_backends.rollout.vllm.ranks import whole_tensor  # noqa: E402

QKV = {"num_heads": 1, "num_kv_heads": 1, "num_kv_head_replicas": 2, "head_size": 2, "v_head_size": 2, "tp_size": 4}
"""Four workers of four heads and two key and value heads."""


class Together:
    """All workers at once, seen from one of them."""

    def __init__(self, parts: list[torch.Tensor], rank: int = 0) -> None:
        self.parts, self.rank, self.size = parts, rank, len(parts)

    def agree(self, failed: bool) -> bool:
        return not failed

    def gather(self, part: torch.Tensor) -> list[torch.Tensor]:
        assert torch.equal(part, self.parts[self.rank])
        return self.parts


def layer(kind: type[torch.nn.Module], **attributes: Any) -> torch.nn.Module:
    made = kind.__new__(kind)
    torch.nn.Module.__init__(made)
    for name, value in attributes.items():
        setattr(made, name, value)
    return made


def whole(made: torch.nn.Module, parts: list[torch.Tensor], rows: list[int], leaf: str = "weight") -> torch.Tensor:
    found = [whole_tensor(made, leaf, part, rows, Together(parts, rank)) for rank, part in enumerate(parts)]
    assert all(torch.equal(each, found[0]) for each in found)
    return found[0]


def test_key_and_value_heads_that_several_workers_hold_count_once() -> None:
    q, k, v = torch.randn(8, 3), torch.randn(4, 3), torch.randn(4, 3)
    kv = [slice(2 * (rank // 2), 2 * (rank // 2) + 2) for rank in range(4)]
    parts = [torch.cat([q[2 * rank : 2 * rank + 2], k[kv[rank]], v[kv[rank]]]) for rank in range(4)]
    assert torch.equal(whole(layer(QKVParallelLinear, **QKV), parts, [8, 4, 4]), torch.cat([q, k, v]))
    parts[1][2] += 1
    with pytest.raises(WeightSyncError, match="workers 0 and 1 should hold the same"):
        whole(layer(QKVParallelLinear, **QKV), parts, [8, 4, 4])


def test_gate_and_up_are_cut_each() -> None:
    gate, up = torch.randn(6, 3), torch.randn(6, 3)
    parts = [torch.cat([gate[3 * rank : 3 * rank + 3], up[3 * rank : 3 * rank + 3]]) for rank in range(2)]
    made = layer(MergedColumnParallelLinear, output_sizes=[6, 6], tp_size=2)
    assert torch.equal(whole(made, parts, [6, 6]), torch.cat([gate, up]))


def test_rows_vocabulary_and_what_everybody_holds() -> None:
    weight, bias = torch.randn(5, 6), torch.randn(5)
    row = layer(RowParallelLinear, tp_size=2)
    assert torch.equal(whole(row, [weight[:, :3], weight[:, 3:]], [5]), weight)
    assert torch.equal(whole(row, [bias, bias], [5], "bias"), bias)
    padded = torch.cat([weight, torch.zeros(3, 6)])
    embedding = layer(VocabParallelEmbedding, tp_size=2)
    assert torch.equal(whole(embedding, [padded[:4], padded[4:]], [5]), weight)
    norm = layer(RMSNorm)
    assert torch.equal(whole(norm, [bias, bias], [5]), bias)
    with pytest.raises(WeightSyncError, match="RMSNorm holds 2 of 5 rows"):
        whole(norm, [bias[:2], bias[2:4]], [5])
    alone = layer(MergedColumnParallelLinear, output_sizes=[5], tp_size=1)  # a layer that is not shared
    assert torch.equal(whole(alone, [weight, weight], [5]), weight)
