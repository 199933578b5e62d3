"""SD3's tensor names in the rollout engine (vLLM-Omni), which fuses the query, key and value projections.

Read from `SD3Transformer2DModel.load_weights` of vLLM-Omni 0.30: `to_q/to_k/to_v` are rows of `to_qkv`, and
`add_q_proj/add_k_proj/add_v_proj` rows of `add_kv_proj`, in the order q, k, v; all other names are diffusers' own. LoRA
matrices keep their names there too: the engine binds them to the parts of a fused projection itself.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch

from omni_portable.contracts.errors import WeightSyncError

FUSED = {
    "to_q": ("to_qkv", "q"),
    "to_k": ("to_qkv", "k"),
    "to_v": ("to_qkv", "v"),
    "add_q_proj": ("add_kv_proj", "q"),
    "add_k_proj": ("add_kv_proj", "k"),
    "add_v_proj": ("add_kv_proj", "v"),
}
"""Projection -> (fused projection, shard)."""

SHARDS = ("q", "k", "v")
"""Order of the shards along dimension 0 of a fused tensor."""


def rollout_name(name: str) -> tuple[str, str | None]:
    """Canonical name -> (name in the rollout engine, shard of it or None where the tensor is the whole of it)."""
    path, _, leaf = name.rpartition(".")
    parent, _, projection = path.rpartition(".")
    if projection not in FUSED or ".lora_" in name:
        return name, None
    fused, shard = FUSED[projection]
    return f"{parent}.{fused}.{leaf}", shard


def fuse(named_tensors: Iterable[tuple[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """Canonical tensors as the rollout engine holds them on one rank: shards concatenated along dimension 0.

    Raises:
        WeightSyncError: a fused tensor of which a shard was not given; names it.
    """
    whole: dict[str, torch.Tensor] = {}
    parts: dict[str, dict[str, torch.Tensor]] = {}
    for name, tensor in named_tensors:
        target, shard = rollout_name(name)
        if shard is None:
            whole[target] = tensor
        else:
            parts.setdefault(target, {})[shard] = tensor
    for target, shards in parts.items():
        missing = [shard for shard in SHARDS if shard not in shards]
        if missing:
            raise WeightSyncError(f"the fused tensor '{target}' lacks its part '{missing[0]}'")
        whole[target] = torch.cat([shards[shard] for shard in SHARDS])
    return whole
