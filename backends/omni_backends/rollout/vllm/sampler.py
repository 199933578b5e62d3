"""Our own choice of the next token inside vLLM: what the native engine draws for a request, vLLM draws, too.

vLLM offers logits processors as an extension; this one chooses the token (`models.autoregressive.sampling`, with the
uniform numbers of the request), and leaves it as the only one with a finite logit. That logit is its log-prob under
softmax(logits / temperature) over the whole vocabulary. With vLLM sampling greedily and `logprobs_mode` set to
'processed_logits', it takes this token and returns this number as it stands: no log-prob has to be converted.

A request names its draws in `SamplingParams.extra_args`; see :func:`draw_arguments`. Loaded by vLLM's workers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from vllm.v1.sample.logits_processor import BatchUpdate, LogitsProcessor, MoveDirectionality

from omni_portable.contracts.tokens import TokenRequest
from omni_portable.models.autoregressive.continuing import begun
from omni_portable.models.autoregressive.sampling import STREAM, choose
from omni_portable.samplers.noise import noise_seed

if TYPE_CHECKING:
    from vllm import SamplingParams
    from vllm.config import VllmConfig

KEY = "omni_portable"
"""Entry of `extra_args` that holds a request's draws."""
FIELDS = ("seed", "start", "count", "temperature", "top_p", "top_k")
"""'start' and 'count': positions of a response that are there already (a prefix), and that it has at most."""


def draw_arguments(request: TokenRequest) -> dict[str, Any]:
    """`extra_args` of a request: plain values."""
    seed = noise_seed(request.seed, request.prompt_id, request.sample_index, 0, STREAM)
    values = (seed, len(begun(request)), request.max_new_tokens, request.temperature, request.top_p, request.top_k)
    return {KEY: dict(zip(FIELDS, values, strict=True))}


@dataclass(frozen=True)
class _Row:
    """A request's draws that are left, and the tokens it has so far (vLLM's own list, which grows)."""

    draws: np.ndarray[Any, Any]
    settings: tuple[float, float, int]
    output: list[int]


class OwnSampler(LogitsProcessor):
    """Chooses the token of every request that names its draws; others are left to vLLM (its warm-up has some).

    Attributes:
        batches: rows of every step with such requests, since they were last taken.
    """

    def __init__(self, vllm_config: VllmConfig, device: torch.device, is_pin_memory: bool) -> None:
        self.batches: list[int] = []
        self._rows: dict[int, _Row] = {}

    @classmethod
    def validate_params(cls, sampling_params: SamplingParams) -> None:
        """Refuse (`ValueError`) draws that are incomplete."""
        given = (sampling_params.extra_args or {}).get(KEY)
        if given is not None and set(given) != set(FIELDS):
            raise ValueError(f"extra_args['{KEY}'] must have {', '.join(FIELDS)}, not {sorted(given)}")

    def is_argmax_invariant(self) -> bool:
        return False

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        """Follow the rows of vLLM's batch."""
        if batch_update is None:
            return
        for index in batch_update.removed:
            self._rows.pop(index, None)
        for index, params, _, output in batch_update.added:
            self._rows.pop(index, None)
            given = (params.extra_args or {}).get(KEY)
            if given is not None:
                self._rows[index] = _row(given, output)
        for left, right, direction in batch_update.moved:
            moved, other = self._rows.pop(left, None), self._rows.pop(right, None)
            if moved is not None:
                self._rows[right] = moved
            if direction == MoveDirectionality.SWAP and other is not None:
                self._rows[left] = other

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        """(B, V) fp32 -> the same with one finite logit in our rows: the chosen token's log-prob."""
        alike: dict[tuple[float, float, int], list[int]] = {}
        for index in sorted(self._rows):
            alike.setdefault(self._rows[index].settings, []).append(index)
        for (temperature, top_p, top_k), rows in alike.items():
            draws = torch.tensor([self._draw(row) for row in rows], dtype=torch.float64)
            ids, log_probs = choose(logits[rows], draws, temperature=temperature, top_p=top_p, top_k=top_k)
            logits[rows] = -torch.inf
            logits[rows, ids] = log_probs
        if self._rows:
            self.batches.append(len(self._rows))
        return logits

    def _draw(self, index: int) -> float:
        row = self._rows[index]
        return float(row.draws[min(len(row.output), len(row.draws) - 1)])


def _row(given: dict[str, Any], output: list[int]) -> _Row:
    draws = np.random.Generator(np.random.Philox(key=int(given["seed"]))).random(int(given["count"]))
    return _Row(
        draws[int(given["start"]) :], (float(given["temperature"]), float(given["top_p"]), int(given["top_k"])), output
    )
