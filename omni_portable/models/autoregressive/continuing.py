"""Going on with a response that was interrupted: its prompt, its ending, and which weights drew which token."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from omni_portable.contracts.tokens import (
    RESPONSE,
    AutoregressiveAdapter,
    FinishReason,
    TokenInputs,
    TokenPrefix,
    TokenRequest,
)
from omni_portable.models.autoregressive.packing import continued


def begun(request: TokenRequest) -> list[int]:
    """Tokens of the response that are there already."""
    return [] if request.prefix is None else [int(token) for token in request.prefix.response_ids]


def extended(inputs: TokenInputs, prefix: TokenPrefix | None) -> TokenInputs:
    """The prompt with the beginning of its response behind it, as the language model reads them."""
    if prefix is None:
        return inputs
    return inputs | {
        "ids": torch.cat([inputs["ids"], prefix.response_ids]),
        "positions": continued(inputs["positions"], prefix.length),
    }


def ending(adapter: AutoregressiveAdapter, request: TokenRequest, ids: Sequence[int]) -> FinishReason | None:
    """Why a response of these tokens (prefix included) has ended; None where it goes on."""
    if not ids:
        return None
    if ids[-1] in adapter.end_ids or stopped(adapter, request.stop, ids):
        return "stop"
    return "length" if len(ids) == request.max_new_tokens else None


def stopped(adapter: AutoregressiveAdapter, stop: Sequence[str], ids: Sequence[int]) -> bool:
    """Whether a response holds a stop text."""
    if not stop:
        return False
    text = str(adapter.read_response(ids)[RESPONSE].data)
    return any(each in text for each in stop)


def kept(
    request: TokenRequest, ids: Sequence[int], log_probs: Sequence[float] | torch.Tensor, version: int
) -> TokenPrefix | None:
    """What an interrupted request had drawn.

    Args:
        ids: of the response so far, prefix included.
        log_probs: of those after the prefix, as seen while decoding.
    """
    if not ids:
        return None
    new = torch.as_tensor(log_probs, dtype=torch.float32).reshape(-1)
    return TokenPrefix(
        torch.tensor(list(ids), dtype=torch.int64),
        joined(request.prefix, new),
        versions(request.prefix, len(ids), version),
    )


def joined(prefix: TokenPrefix | None, log_probs: torch.Tensor) -> torch.Tensor:
    """(N,) log-probs after a prefix -> (L + N,) of the whole response."""
    return log_probs if prefix is None else torch.cat([prefix.log_probs, log_probs])


def versions(prefix: TokenPrefix | None, length: int, version: int) -> torch.Tensor:
    """(length,) int64: the version that drew each token of a response whose end `version` drew."""
    old = [] if prefix is None else prefix.policy_versions.tolist()
    return torch.tensor(old + [version] * (length - len(old)), dtype=torch.int64)


def mixed(prefix: TokenPrefix | None, length: int, version: int) -> tuple[int, torch.Tensor | None]:
    """`TokenTrajectory.policy_version` and `.policy_versions` of a finished response."""
    tags = versions(prefix, length, version)
    oldest = int(tags.min())
    return oldest, None if bool((tags == oldest).all()) else tags
