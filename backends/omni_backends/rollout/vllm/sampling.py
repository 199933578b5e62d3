"""A request's settings as vLLM takes them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from omni_portable.contracts.tokens import TokenRequest
from omni_portable.models.autoregressive.continuing import begun


def sampling_parameters(request: TokenRequest, end_ids: Iterable[int]) -> Any:
    """vLLM's `SamplingParams`: it takes the one token that our sampler leaves (temperature 0) and returns its logit,
    which is the token's log-prob; it ends at end tokens and lengths. Stop texts are looked for here, as in the native
    engine, so that vLLM turns no token into text."""
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    from omni_backends.rollout.vllm.sampler import draw_arguments

    return SamplingParams(
        temperature=0.0,
        max_tokens=request.max_new_tokens - len(begun(request)),
        stop_token_ids=sorted(end_ids),
        ignore_eos=True,
        logprobs=0,
        detokenize=False,
        skip_special_tokens=False,
        output_kind=RequestOutputKind.CUMULATIVE,
        extra_args=draw_arguments(request),
    )
