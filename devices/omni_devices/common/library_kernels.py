"""The attention kernel behind a choice's actor name, called through the library that owns the name.

Proofs run what the library registered, not a call of our own that is believed to be the same.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import torch
from torch import Tensor

from omni_devices.common.attention_check import Kernel
from omni_portable.contracts.device import AttentionChoice
from omni_portable.contracts.errors import AttentionUnavailable


def kernel(choice: AttentionChoice) -> Kernel:
    """A callable for the actor's kernel.

    Raises:
        AttentionUnavailable: the installed library does not know the name, or cannot bring the kernel.
    """
    return _diffusers(choice) if choice.actor_library == "diffusers" else _transformers(choice)


def _diffusers(choice: AttentionChoice) -> Kernel:
    from diffusers.models.attention_dispatch import AttentionBackendName, attention_backend, dispatch_attention_fn

    known = [name.value for name in AttentionBackendName]
    if choice.actor not in known:
        raise AttentionUnavailable(f"the installed diffusers has no attention backend '{choice.actor}'", choices=known)
    backend = AttentionBackendName(choice.actor)
    try:
        with attention_backend(backend):  # entering checks its packages, and loads a kernel that comes from the hub
            pass
    except (RuntimeError, ImportError, OSError) as error:
        raise AttentionUnavailable(
            f"the installed diffusers cannot use its attention backend '{choice.actor}': {error}",
            remedy=f"install what it needs ({choice.package})",
        ) from error
    takes_both = "varlen" in choice.actor  # the others take a mask or the causal flag, as torch's own function does

    def run(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, causal: bool) -> Tensor:
        if mask is not None and causal and not takes_both:
            mask, causal = mask & _lower(query), False
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
    function = _transformers_function(choice)

    def run(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, causal: bool) -> Tensor:
        layer = SimpleNamespace(
            num_key_value_groups=query.shape[1] // key.shape[1],
            training=query.requires_grad,
            is_causal=causal,
            config=SimpleNamespace(_attn_implementation=choice.actor),
        )
        if choice.actor == "eager":
            mask, causal = _additive(mask, causal, query), False
        elif choice.actor == "sdpa":
            mask, causal = (mask & _lower(query), False) if mask is not None and causal else (mask, causal)
        elif choice.actor == "flex_attention":
            mask, causal = _block_mask(mask, causal, query), False
        elif mask is not None:
            mask = mask[:, 0, 0]  # flash kernels take padding as (B, T)
        scaling = query.shape[-1] ** -0.5
        out = function(layer, query, key, value, mask, scaling=scaling, dropout=0.0, is_causal=causal)[0]
        return out.transpose(1, 2)

    return run


def _transformers_function(choice: AttentionChoice) -> Callable[..., Any]:
    from transformers import AttentionInterface
    from transformers.integrations.hub_kernels import load_and_register_attn_kernel
    from transformers.models.llama.modeling_llama import eager_attention_forward

    if choice.actor == "eager":
        # Each model has its own copy of eager attention; llama's is the one that the others are generated from.
        return cast(Callable[..., Any], eager_attention_forward)
    registry = AttentionInterface()
    try:
        if choice.actor not in registry and "/" in choice.actor:
            load_and_register_attn_kernel(choice.actor)
    except (RuntimeError, ImportError, OSError, ValueError) as error:
        raise AttentionUnavailable(
            f"the installed transformers cannot load the kernel '{choice.actor}': {error}",
            remedy=f"install what it needs ({choice.package}), and let this host reach the hub or its cache",
        ) from error
    if choice.actor not in registry:
        raise AttentionUnavailable(
            f"the installed transformers has no attention implementation '{choice.actor}'", choices=sorted(registry)
        )
    return cast(Callable[..., Any], registry[choice.actor])


def _lower(query: Tensor) -> Tensor:
    return torch.ones(query.shape[2], query.shape[2], dtype=torch.bool, device=query.device).tril()


def _block_mask(mask: Tensor | None, causal: bool, query: Tensor) -> Any:
    """Flex attention knows neither masks nor a causal flag, only blocks of a predicate; models of transformers make
    the same from theirs."""
    from torch.nn.attention.flex_attention import create_block_mask

    if causal:
        mask = _lower(query)[None, None] if mask is None else mask & _lower(query)
    if mask is None:
        return None
    batch, tokens = query.shape[0], query.shape[2]
    allowed = mask.expand(batch, 1, tokens, tokens)
    return create_block_mask(lambda b, h, q, k: allowed[b, 0, q, k], batch, None, tokens, tokens, query.device)


def _additive(mask: Tensor | None, causal: bool, query: Tensor) -> Tensor | None:
    """Eager attention adds its mask to the scores and knows no causal flag."""
    if causal:
        mask = _lower(query) if mask is None else mask & _lower(query)
    if mask is None:
        return None
    blocked = torch.finfo(query.dtype).min
    return torch.zeros(mask.shape, dtype=query.dtype, device=query.device).masked_fill(~mask, blocked)
