"""Attention of vLLM-Omni's transformers on the CPU: torch's scaled dot product attention, as the actor uses."""

from __future__ import annotations

import torch
from vllm_omni.diffusion.attention.backends.abstract import AttentionMetadata
from vllm_omni.diffusion.attention.backends.sdpa import SDPABackend, SDPAImpl


class CpuSDPAImpl(SDPAImpl):
    """The engine's implementation chooses a method by platform and has none for plugins' platforms."""

    def forward(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_metadata: AttentionMetadata | None = None,
    ) -> torch.Tensor:
        """(B, tokens, heads, head size) each; a mask of keys broadcasts over queries."""
        output: torch.Tensor = self._forward_impl(query, key, value, attn_metadata, mask_mode="broadcast_k")
        return output


class CpuSDPABackend(SDPABackend):
    """See :class:`CpuSDPAImpl`."""

    @staticmethod
    def get_impl_cls() -> type[CpuSDPAImpl]:
        return CpuSDPAImpl
