"""The attention kernel behind a choice's actor name, called through the library that owns the name.

Proofs run what the library registered, not a call of our own that is believed to be the same.
"""

from __future__ import annotations

from types import SimpleNamespace

import torch
from torch import Tensor

from omni_devices.common.attention_check import Kernel
from omni_portable.contracts.device import AttentionChoice
from omni_portable.contracts.errors import AttentionUnavailable


def kernel(choice: AttentionChoice) -> Kernel:
    """A callable for the actor's kernel.

    Raises:
        AttentionUnavailable: the installed library does not know the name.
    """
    return _diffusers(choice) if choice.actor_library == "diffusers" else _transformers(choice)


def _diffusers(choice: AttentionChoice) -> Kernel:
    from diffusers.models.attention_dispatch import AttentionBackendName, dispatch_attention_fn

    known = [name.value for name in AttentionBackendName]
    if choice.actor not in known:
        raise AttentionUnavailable(f"the installed diffusers has no attention backend '{choice.actor}'", choices=known)
    backend = AttentionBackendName(choice.actor)

    def run(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, causal: bool) -> Tensor:
        out: Tensor = dispatch_attention_fn(
            *(x.transpose(1, 2) for x in (query, key, value)),
            attn_mask=mask,
            is_causal=causal,
            enable_gqa=query.shape[1] != key.shape[1],
            backend=backend,
        )
        return out.transpose(1, 2)

    return run


def _transformers(choice: AttentionChoice) -> Kernel:
    from transformers import AttentionInterface
    from transformers.models.llama.modeling_llama import eager_attention_forward

    if choice.actor == "eager":
        # Each model has its own copy of eager attention; llama's is the one that the others are generated from.
        function = eager_attention_forward
    else:
        registry = AttentionInterface()
        if choice.actor not in registry:
            raise AttentionUnavailable(
                f"the installed transformers has no attention implementation '{choice.actor}'", choices=sorted(registry)
            )
        function = registry[choice.actor]

    def run(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, causal: bool) -> Tensor:
        layer = SimpleNamespace(
            num_key_value_groups=query.shape[1] // key.shape[1], training=query.requires_grad, is_causal=causal
        )
        scaling = query.shape[-1] ** -0.5
        if choice.actor == "eager":
            mask, causal = _additive(mask, causal, query), False
        out = function(layer, query, key, value, mask, scaling=scaling, dropout=0.0, is_causal=causal)[0]
        return out.transpose(1, 2)

    return run


def _additive(mask: Tensor | None, causal: bool, query: Tensor) -> Tensor | None:
    """Eager attention adds its mask to the scores and knows no causal flag."""
    if causal:
        lower = torch.ones(query.shape[2], query.shape[2], dtype=torch.bool, device=query.device).tril()
        mask = lower if mask is None else mask & lower
    if mask is None:
        return None
    blocked = torch.finfo(query.dtype).min
    return torch.zeros(mask.shape, dtype=query.dtype, device=query.device).masked_fill(~mask, blocked)
