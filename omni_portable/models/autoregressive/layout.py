"""Tensor names of language models in the rollout engine (vLLM), which fuses projections and experts.

Read from vLLM's model classes: `q_proj / k_proj / v_proj` are rows of `qkv_proj`, `gate_proj / up_proj` rows of
`gate_up_proj`, in these orders; the experts of one layer are stacked as here, under other names. LoRA matrices keep
their names there: the engine binds them to the parts of a fused projection itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch

from omni_portable.contracts.errors import WeightSyncError

FUSED = {
    "q_proj": ("qkv_proj", "q"),
    "k_proj": ("qkv_proj", "k"),
    "v_proj": ("qkv_proj", "v"),
    "gate_proj": ("gate_up_proj", "gate"),
    "up_proj": ("gate_up_proj", "up"),
}
"""Projection -> (fused projection, shard)."""

SHARDS = {"qkv_proj": ("q", "k", "v"), "gate_up_proj": ("gate", "up")}
"""Fused projection -> order of its shards along dimension 0."""

EXPERTS = {
    "experts.gate_up_proj": "experts.routed_experts.w13_weight",
    "experts.down_proj": "experts.routed_experts.w2_weight",
}
"""Stacked experts: (experts, 2 x intermediate, width) and (experts, width, intermediate) on both sides."""


def rollout_name(name: str, prefixes: Mapping[str, str]) -> tuple[str, str | None]:
    """Canonical name -> (name in the rollout engine, shard of it or None where the tensor is the whole of it).

    Args:
        prefixes: first parts of names that are spelled otherwise there ('lm_head.' -> 'language_model.lm_head.').
    """
    if ".lora_" in name:
        return name, None
    for own, theirs in prefixes.items():
        if name.startswith(own):
            name = theirs + name.removeprefix(own)
            break
    for own, theirs in EXPERTS.items():
        if name.endswith(own):
            return name.removesuffix(own) + theirs, None
    path, _, leaf = name.rpartition(".")
    parent, _, projection = path.rpartition(".")
    if projection not in FUSED:
        return name, None
    fused, shard = FUSED[projection]
    return f"{parent}.{fused}.{leaf}", shard


def fuse(named_tensors: Iterable[tuple[str, torch.Tensor]], prefixes: Mapping[str, str]) -> dict[str, torch.Tensor]:
    """Canonical tensors as the rollout engine holds them on one rank: shards concatenated along dimension 0.

    Raises:
        WeightSyncError: a fused tensor of which a shard was not given; names it.
    """
    whole: dict[str, torch.Tensor] = {}
    parts: dict[str, dict[str, torch.Tensor]] = {}
    for name, tensor in named_tensors:
        target, shard = rollout_name(name, prefixes)
        if shard is None:
            whole[target] = tensor
        else:
            parts.setdefault(target, {})[shard] = tensor
    for target, shards in parts.items():
        order = SHARDS[target.split(".")[-2]]
        missing = [shard for shard in order if shard not in shards]
        if missing:
            raise WeightSyncError(f"the fused tensor '{target}' lacks its part '{missing[0]}'")
        whole[target] = torch.cat([shards[shard] for shard in order])
    return whole


def split(
    fused: Mapping[str, torch.Tensor], shapes: Mapping[str, torch.Size], prefixes: Mapping[str, str]
) -> dict[str, torch.Tensor]:
    """Inverse of :func:`fuse`.

    Args:
        shapes: canonical name -> shape, of every tensor to be given back.

    Raises:
        WeightSyncError: a tensor that the fused ones do not hold.
    """
    found: dict[str, torch.Tensor] = {}
    taken: dict[str, dict[str, str]] = {}
    for name in shapes:
        target, shard = rollout_name(name, prefixes)
        if target not in fused:
            raise WeightSyncError(f"the rollout layout holds no tensor '{target}' for '{name}'")
        if shard is None:
            found[name] = fused[target]
        else:
            taken.setdefault(target, {})[shard] = name
    for target, names in taken.items():
        order = [names[shard] for shard in SHARDS[target.split(".")[-2]]]
        parts = fused[target].split([shapes[name][0] for name in order])
        found.update(zip(order, parts, strict=True))
    return {name: found[name] for name in shapes}
