"""One pack of requests on its way from prompts to scored responses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from omni_portable.contracts.errors import NonFiniteError
from omni_portable.contracts.tokens import (
    AutoregressiveAdapter,
    Decoding,
    FinishReason,
    TokenInputs,
    TokenPrefix,
    TokenRequest,
    TokenRow,
    TokenTrajectory,
)
from omni_portable.models.autoregressive.continuing import begun, ending, extended, joined, kept, mixed
from omni_portable.models.autoregressive.sampling import choose, uniforms


class TokenPackRun:
    """Decodes B requests of equal sampling settings in lockstep; the caller holds no_grad.

    A row that has ended, or was aborted, keeps its place until the pack ends: the batch shape of the others must not
    change under way. When all have ended, `score` runs one full forward over the complete sequences, whose log-probs
    are those that the actor will repeat; what was seen while decoding is kept beside them.

    A request that goes on after a prefix reads it as part of its prompt; every position is drawn with its own random
    number, so the same weights draw what they would have drawn without an interruption.
    """

    def __init__(
        self, adapter: AutoregressiveAdapter, requests: Sequence[TokenRequest], prompts: Sequence[TokenInputs]
    ) -> None:
        self._adapter, self._requests, self._prompts = adapter, requests, prompts
        longest = max(request.max_new_tokens for request in requests)
        self._ids = [begun(request) for request in requests]
        self._draws = torch.zeros(len(requests), longest, dtype=torch.float64)
        for row, (request, ids) in enumerate(zip(requests, self._ids, strict=True)):
            self._draws[row, : request.max_new_tokens - len(ids)] = uniforms(request)[len(ids) :]
        self._finished: list[FinishReason | None] = [
            ending(adapter, request, ids) for request, ids in zip(requests, self._ids, strict=True)
        ]
        self._seen: list[torch.Tensor] = []
        self._scores: torch.Tensor | None = None
        self._decoding: Decoding | None = None
        if not self.done:
            self._decoding = adapter.begin(
                [extended(prompt, request.prefix) for prompt, request in zip(prompts, requests, strict=True)]
            )

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
        """Drawn here, of all responses so far."""
        return sum(len(ids) - len(begun(request)) for ids, request in zip(self._ids, self._requests, strict=True))

    def advance(self) -> None:
        """One token for every row that has not ended."""
        assert self._decoding is not None, "some row has not ended"
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
                self._finished[row] = ending(self._adapter, self._requests[row], self._ids[row])
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
        first, seen = len(begun(request)), self._seen_after_prefix(row)
        log_probs = joined(request.prefix, self._scores[row, first : len(ids)].clone())
        seen = joined(request.prefix, seen)
        for what, values in (("log-probs", log_probs), ("log-probs while decoding", seen)):
            if not bool(torch.isfinite(values).all()):
                raise NonFiniteError(
                    f"the {what} of request '{request.request_id}' (policy version {version}) are not finite",
                    remedy="check the weights, the temperature and the dtype of the model",
                )
        oldest, versions = mixed(request.prefix, len(ids), version)
        return TokenTrajectory(
            request=replace(request, prefix=None),
            policy_version=oldest,
            inputs=self._prompts[row],
            response_ids=ids,
            log_probs=log_probs,
            sampled_log_probs=seen,
            finish_reason=finish,
            artifacts=self._adapter.read_response(ids.tolist(), request.stop),
            batch_size=self.size,
            batch_row=row,
            engine=engine,
            policy_versions=versions,
        )

    def partial(self, row: int, version: int) -> TokenPrefix | None:
        """What an interrupted request in `row` has so far."""
        return kept(self._requests[row], self._ids[row], self._seen_after_prefix(row), version)

    def _seen_after_prefix(self, row: int) -> torch.Tensor:
        drawn = len(self._ids[row]) - len(begun(self._requests[row]))
        return torch.stack([step[row] for step in self._seen[:drawn]]) if drawn else torch.empty(0)

    def _response(self, row: int) -> torch.Tensor:
        return torch.tensor(self._ids[row], dtype=torch.int64)
