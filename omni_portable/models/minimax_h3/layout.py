"""MiniMax-H3's tensor names in the rollout engine (vLLM-Omni 0.30).

Its transformer has the names of the original release: query, key and value are rows of `attn.qkv_proj` in this order,
and the two halves of the first feed-forward layer, value and gate in diffusers, are gate and value there. LoRA matrices
keep the names of the parts of a fused projection; the output side of that feed-forward layer swaps its halves, too.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch

from omni_portable.models.fused_layout import FusedLayout

_MODULES = {
    "token_refiner.refiner_blocks": "token_refiner.blocks",
    "transformer_blocks": "blocks",
    "time_embedder.linear_1": "time_embedder.proj_in",
    "time_embedder.linear_2": "time_embedder.proj_out",
    "norm_out.linear": "final_layer.adaln_proj.linear",
    "norm_out.norm": "final_layer.norm",
    "audio_proj_in": "audio_patch_proj",
    "audio_proj_out": "final_layer.audio_out",
    "proj_in": "video_patch_proj",
    "proj_out": "final_layer.video_out",
    "context_embedder": "condition_proj",
}
"""Start of a name -> what stands for it in the engine."""
_PARTS = {
    "attn.to_out.0": "attn.out_proj",
    "attn.norm_q": "attn.q_norm",
    "attn.norm_k": "attn.k_norm",
    "ff.net.0.proj": "mlp.fc1",
    "ff.net.2": "mlp.fc2",
}
"""Part of a block's name -> what stands for it in the engine."""
SWAPPED = ("mlp.fc1.weight", "mlp.fc1.lora_B.weight")


@dataclass(frozen=True)
class H3Layout(FusedLayout):
    """See the module."""

    def rollout_name(self, name: str) -> tuple[str, str | None]:
        found, shard = super().rollout_name(name)
        return _start(found, _MODULES), shard

    def canonical_name(self, name: str, shard: str | None = None) -> str:
        return super().canonical_name(_start(name, {theirs: own for own, theirs in _MODULES.items()}), shard)

    def tensors(self, name: str, tensor: torch.Tensor) -> Iterable[tuple[str, torch.Tensor]]:
        for target, own in super().tensors(name, tensor):
            yield target, _swap(own) if target.endswith(SWAPPED) else own

    def fuse(self, named_tensors: Iterable[tuple[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
        fused = super().fuse(named_tensors)
        return {name: _swap(tensor) if name.endswith(SWAPPED) else tensor for name, tensor in fused.items()}

    def split(self, named_tensors: Iterable[tuple[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
        return super().split((name, _swap(t) if name.endswith(SWAPPED) else t) for name, t in named_tensors)


def _start(name: str, starts: dict[str, str]) -> str:
    for own, theirs in starts.items():
        if name.startswith(f"{own}."):
            return theirs + name.removeprefix(own)
    return name


def _swap(tensor: torch.Tensor) -> torch.Tensor:
    """Both halves of the rows, exchanged."""
    first, second = tensor.chunk(2)
    return torch.cat([second, first])


LAYOUT = H3Layout({f"to_{shard}": ("qkv_proj", shard) for shard in ("q", "k", "v")}, _PARTS)
