"""Tensor names in the rollout engine (vLLM-Omni), which fuses the query, key and value projections of attention.

Read from the `load_weights` of vLLM-Omni 0.30's transformers: `to_q/to_k/to_v` are rows of `to_qkv`, and
`add_q_proj/add_k_proj/add_v_proj` rows of `add_kv_proj`, in the order q, k, v. LoRA matrices keep the names of the
parts: the engine binds them to the parts of a fused projection itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import torch

from omni_portable.contracts.errors import WeightSyncError

SHARDS = ("q", "k", "v")
"""Order of the shards along dimension 0 of a fused tensor."""

SELF_ATTENTION = {f"to_{shard}": ("to_qkv", shard) for shard in SHARDS}
ADDED_ATTENTION = {f"add_{shard}_proj": ("add_kv_proj", shard) for shard in SHARDS}
"""Projections of a second stream of tokens in joint attention."""


@dataclass(frozen=True)
class FusedLayout:
    """How one transformer's canonical (diffusers) names map to the rollout engine's.

    Args:
        fused: projection -> (fused projection, shard).
        renamed: part of a name between dots -> what stands for it in the engine ('to_out.0' -> 'to_out'); the other
            side must not occur in canonical names. LoRA names are renamed too.
    """

    fused: Mapping[str, tuple[str, str]]
    renamed: Mapping[str, str] = field(default_factory=dict)

    def rollout_name(self, name: str) -> tuple[str, str | None]:
        """Canonical name -> (name in the engine, shard of it or None where the tensor is the whole of it)."""
        for own, theirs in self.renamed.items():
            name = name.replace(f".{own}.", f".{theirs}.")
        path, _, leaf = name.rpartition(".")
        parent, _, projection = path.rpartition(".")
        if projection not in self.fused or ".lora_" in name:
            return name, None
        fused, shard = self.fused[projection]
        return f"{parent}.{fused}.{leaf}", shard

    def canonical_name(self, name: str, shard: str | None = None) -> str:
        """Inverse of :meth:`rollout_name`."""
        path, _, leaf = name.rpartition(".")
        parent, _, fused = path.rpartition(".")
        if shard is not None:
            projections = {place: projection for projection, place in self.fused.items()}
            name = f"{parent}.{projections[fused, shard]}.{leaf}"
        for own, theirs in self.renamed.items():
            name = name.replace(f".{theirs}.", f".{own}.")
        return name

    def stacked_params(self) -> list[tuple[str, str, str]]:
        """(fused projection, its part, shard) with a leading dot, as the engine's LoRA manager looks for them in a
        transformer's `stacked_params_mapping`; FLUX's class does not offer them."""
        return [(f".{fused}", f".{part}", shard) for part, (fused, shard) in self.fused.items()]

    def tensors(self, name: str, tensor: torch.Tensor) -> Iterable[tuple[str, torch.Tensor]]:
        """One canonical tensor under its name in the engine; a shard of a fused one is called 'FUSED:q', ':k', ':v'."""
        target, shard = self.rollout_name(name)
        yield (f"{target}:{shard}" if shard else target), tensor

    def fuse(self, named_tensors: Iterable[tuple[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
        """Canonical tensors as the engine holds them on one rank: shards concatenated along dimension 0.

        Raises:
            WeightSyncError: a fused tensor of which a shard was not given; names it.
        """
        whole: dict[str, torch.Tensor] = {}
        parts: dict[str, dict[str, torch.Tensor]] = {}
        for name, tensor in named_tensors:
            target, shard = self.rollout_name(name)
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

    def split(self, named_tensors: Iterable[tuple[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
        """Inverse of :meth:`fuse`, for projections whose parts are of equal size (as many key as query heads).

        Raises:
            WeightSyncError: a fused tensor that has no three equal parts.
        """
        fused = {name for name, _ in self.fused.values()}
        canonical: dict[str, torch.Tensor] = {}
        for name, tensor in named_tensors:
            if ".lora_" in name or name.rpartition(".")[0].rpartition(".")[2] not in fused:
                canonical[self.canonical_name(name)] = tensor
                continue
            if tensor.shape[0] % len(SHARDS):
                raise WeightSyncError(f"the fused tensor '{name}' has {tensor.shape[0]} rows, no three equal parts")
            for shard, part in zip(SHARDS, tensor.chunk(len(SHARDS)), strict=True):
                canonical[self.canonical_name(name, shard)] = part
        return canonical


JOINT_ATTENTION = FusedLayout({**SELF_ATTENTION, **ADDED_ATTENTION})
"""Transformers whose attention joins two streams of tokens and whose other names are diffusers' own (SD3, FLUX)."""
