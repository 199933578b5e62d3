"""One pack of requests on its way from prompts to scored responses."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from omni_portable.contracts.errors import NonFiniteError
from omni_portable.contracts.tokens import (
    AutoregressiveAdapter,
    FinishReason,
    TokenInputs,
    TokenRequest,
    TokenRow,
    TokenTrajectory,
)
from omni_portable.models.autoregressive.sampling import choose, uniforms


class TokenPackRun:
    """Decodes B requests of equal sampling settings in lockstep; the caller holds no_grad.

    A row that has ended, or was aborted, keeps its place until the pack ends: the batch shape of the others must not
    change under way. When all have ended, `score` runs one full forward over the complete sequences, whose log-probs
    are those that the actor will repeat; what was seen while decoding is kept beside them.
    """

    def __init__(
        self, adapter: AutoregressiveAdapter, requests: Sequence[TokenRequest], prompts: Sequence[TokenInputs]
    ) -> None:
        self._adapter, self._requests, self._prompts = adapter, requests, prompts
        longest = max(request.max_new_tokens for request in requests)
        self._draws = torch.zeros(len(requests), longest, dtype=torch.float64)
        for row, request in enumerate(requests):
            self._draws[row, : request.max_new_tokens] = uniforms(request)
        self._ids: list[list[int]] = [[] for _ in requests]
        self._finished: list[FinishReason | None] = [None for _ in requests]
        self._seen: list[torch.Tensor] = []
        self._scores: torch.Tensor | None = None
        self._decoding = adapter.begin(prompts)

    @property
    def size(self) -> int:
        """B, the rows of every forward."""
        return len(self._requests)

    @property
    def done(self) -> bool:
        """Whether every row has ended."""
        return None not in self._finished

    @property
    def tokens(self) -> int:
        """Of all responses so far."""
        return sum(map(len, self._ids))

    def advance(self) -> None:
        """One token for every row that has not ended."""
        request, step = self._requests[0], len(self._seen)
        ids, log_probs = choose(
            self._decoding.logits(),
            self._draws[:, step],
            temperature=request.temperature,
            top_p=request.top_p,
            top_k=request.top_k,
        )
        self._seen.append(log_probs.cpu())
        for row, token in enumerate(ids.tolist()):
            if self._finished[row] is None:
                self._ids[row].append(token)
                self._finished[row] = self._ending(row)
        if not self.done:
            self._decoding.advance(ids)

    def score(self) -> None:
        """One full forward over all rows."""
        rows = [TokenRow(prompt, self._response(row)) for row, prompt in enumerate(self._prompts)]
        self._scores = self._adapter.score(rows, self._requests[0].scored_temperature).log_prob.cpu()

    def trajectory(self, row: int, version: int, engine: str) -> TokenTrajectory:
        """What the request in `row` produced; its tensors own their storage, the encoded prompt is shared.

        Raises:
            NonFiniteError: a log-prob that is NaN or infinite.
        """
        request, ids, finish = self._requests[row], self._response(row), self._finished[row]
        assert self._scores is not None, "score() comes before"
        assert finish is not None, "every row has ended before"
        log_probs = self._scores[row, : len(ids)].clone()
        seen = torch.stack([step[row] for step in self._seen[: len(ids)]])
        for what, values in (("log-probs", log_probs), ("log-probs while decoding", seen)):
            if not bool(torch.isfinite(values).all()):
                raise NonFiniteError(
                    f"the {what} of request '{request.request_id}' (policy version {version}) are not finite",
                    remedy="check the weights, the temperature and the dtype of the model",
                )
        artifacts = self._adapter.read_response(ids.tolist(), request.stop)
        return TokenTrajectory(
            request, version, self._prompts[row], ids, log_probs, seen, finish, artifacts, self.size, row, engine
        )

    def _response(self, row: int) -> torch.Tensor:
        return torch.tensor(self._ids[row], dtype=torch.int64)

    def _ending(self, row: int) -> FinishReason | None:
        request, ids = self._requests[row], self._ids[row]
        if ids[-1] in self._adapter.end_ids or (request.stop and self._stopped(request, ids)):
            return "stop"
        return "length" if len(ids) == request.max_new_tokens else None

    def _stopped(self, request: TokenRequest, ids: Sequence[int]) -> bool:
        text = str(self._adapter.read_response(ids)["response"].data)
        return any(stop in text for stop in request.stop)
