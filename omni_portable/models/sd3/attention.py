"""Joint attention of SD3 by diffusers' dispatcher.

diffusers' own processor calls torch's scaled dot product attention directly, so `set_attention_backend` has no effect
on it, without a word. :class:`JointAttention` does the same arithmetic through the dispatcher instead.
"""

from __future__ import annotations

from typing import Any

import torch
from diffusers.models.attention_dispatch import AttentionBackendName, dispatch_attention_fn
from diffusers.models.attention_processor import Attention


class JointAttention:
    """Attention of image and text tokens together (SD3), or of image tokens alone (SD3.5's second attention).

    Per stream: project, optional RMS norm per head; concatenate [image, text]; attend without a mask; split; project.
    """

    _attention_backend: AttentionBackendName | None = None
    _parallel_config: Any = None

    def __call__(
        self,
        attn: Attention,
        hidden_states: torch.Tensor,
        encoder_hidden_states: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
    ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        """Image tokens (B, N, C) and text tokens (B, M, C) -> the same shapes; image tokens alone without text."""
        if attention_mask is not None:
            raise ValueError("SD3's joint attention takes no mask")
        query, key, value = _heads(attn, hidden_states, "to_q", "to_k", "to_v", "norm_q", "norm_k")
        if encoder_hidden_states is not None:
            text = _heads(
                attn, encoder_hidden_states, "add_q_proj", "add_k_proj", "add_v_proj", "norm_added_q", "norm_added_k"
            )
            query, key, value = (torch.cat(pair, dim=1) for pair in zip((query, key, value), text, strict=True))
        mixed = dispatch_attention_fn(
            query, key, value, backend=self._attention_backend, parallel_config=self._parallel_config
        )
        mixed = mixed.flatten(2, 3).to(query.dtype)
        image, rest = mixed[:, : hidden_states.shape[1]], mixed[:, hidden_states.shape[1] :]
        image = attn.to_out[1](attn.to_out[0](image))
        if encoder_hidden_states is None:
            return image
        return image, rest if attn.context_pre_only else attn.to_add_out(rest)


def _heads(
    attn: Attention, tokens: torch.Tensor, q: str, k: str, v: str, norm_q: str, norm_k: str
) -> list[torch.Tensor]:
    """Query, key and value (B, tokens, heads, head_dim) by the named projections and norms of `attn`."""
    parts = []
    for projection, norm in ((q, norm_q), (k, norm_k), (v, None)):
        part = getattr(attn, projection)(tokens).unflatten(-1, (attn.heads, -1))
        normalise = getattr(attn, norm) if norm else None
        parts.append(part if normalise is None else normalise(part))
    return parts
