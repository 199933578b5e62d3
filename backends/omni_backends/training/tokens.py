"""Rows that are tokens of responses, replayed in the batches that the rollout scored them in.

A micro-batch is one forward over complete sequences (`AutoregressiveAdapter.score`), the same function on the same rows
as in the rollout's pack, so its log-probs are the same bits while the weights are the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch

from omni_backends.training.micro import Common, MicroBatch, check_equal, check_shape, parts, sample_weights, take
from omni_portable.contracts.algorithm import TrainBatch
from omni_portable.contracts.errors import ConsistencyError
from omni_portable.contracts.tokens import (
    AnyTrajectory,
    AutoregressiveAdapter,
    TokenAlgorithm,
    TokenReplay,
    TokenRow,
    TokenRows,
    TokenScores,
    TokenTrajectory,
)


@dataclass(frozen=True)
class TokenBatch(MicroBatch):
    """B responses of up to L tokens under one temperature; a sample has one row of training, its response.

    Args:
        rows: prompts and responses.
        temperature: that logits are divided by.
        budgets: (B,) int64, max_new_tokens.
        old_log_probs: (B, L) fp32 on the device, 0 on padding.
        importance_weights: (B, L) fp32 on the device, or None.
        algorithm: says how rows are weighed and what the forward must give; None where only log-probs are wanted.
    """

    common: Common
    rows: tuple[TokenRow, ...]
    temperature: float
    budgets: torch.Tensor
    old_log_probs: torch.Tensor
    importance_weights: torch.Tensor | None
    algorithm: TokenAlgorithm | None

    @property
    def num_steps(self) -> int:
        """One forward sees all tokens."""
        return 1

    def forward(self, adapter: AutoregressiveAdapter, step: int) -> TokenScores:
        """Score every response. The entropy is only computed where a gradient will be."""
        wanted = self.algorithm
        return adapter.score(
            self.rows,
            self.temperature,
            entropy=wanted is not None and wanted.needs_entropy and torch.is_grad_enabled(),
            logits=wanted is not None and wanted.needs_logits,
        )

    def recorded(self, scored: TokenScores) -> torch.Tensor:
        """(B, L) log-probs, NaN on padding."""
        return scored.log_prob.detach().masked_fill(~scored.mask, torch.nan)

    def loss_inputs(
        self, step: int, scored: TokenScores, others: Mapping[str, TokenScores]
    ) -> tuple[TokenReplay, TokenRows]:
        assert self.algorithm is not None  # a batch without one is never trained on
        rows = self.common.kept(scored.log_prob.device)
        teacher, mask = others.get("teacher"), scored.mask.float()
        replay = TokenReplay(
            log_prob=take(scored.log_prob, rows),
            mask=take(mask, rows),
            entropy=None if scored.entropy is None else take(scored.entropy, rows),
            logits=None if scored.logits is None else take(scored.logits, rows),
            teacher_logits=None if teacher is None or teacher.logits is None else take(teacher.logits, rows),
            **{f"{policy}_log_prob": take(other.log_prob, rows) for policy, other in others.items()},
        )
        weights = self.importance_weights
        return replay, TokenRows(
            old_log_prob=take(self.old_log_probs, rows),
            advantage=take(self.common.advantages, rows),
            weight=take(self.algorithm.row_weights(mask, self.common.weights, self.budgets), rows),
            importance_weight=None if weights is None else take(weights, rows),
            sample_ids=tuple(i for i, kept in zip(self.common.request_ids, self.common.trained, strict=True) if kept),
            unit=take(self.common.unit, rows),
        )


def token_trajectories(trajectories: Sequence[AnyTrajectory]) -> list[TokenTrajectory]:
    """Trajectories of an autoregressive model; `ConsistencyError` where one is a denoised sample."""
    kept = [trajectory for trajectory in trajectories if isinstance(trajectory, TokenTrajectory)]
    if len(kept) != len(trajectories):
        raise ConsistencyError("an autoregressive model was given denoised samples to train on")
    return kept


def total_weight(batch: TrainBatch, algorithm: TokenAlgorithm) -> float:
    """What the loss of the whole mini-batch is divided by."""
    lengths = torch.tensor([trajectory.length for trajectory in token_trajectories(batch.trajectories)])
    return algorithm.total_weight(lengths, sample_weights(batch))


def token_batches(
    batch: TrainBatch, algorithm: TokenAlgorithm | None, size: int, device: torch.device
) -> Iterator[TokenBatch]:
    """The batch in contiguous parts of at most `size` responses, in order.

    Raises:
        DataError: tensors that do not fit the trajectories.
        ConsistencyError: responses of one part that were drawn at other temperatures.
    """
    trajectories = token_trajectories(batch.trajectories)
    slices, weights = parts(batch, size), sample_weights(batch)
    widest = max(trajectory.length for trajectory in trajectories)
    for name, tensor in (("old_log_probs", batch.old_log_probs), ("importance_weights", batch.importance_weights)):
        if tensor is not None:
            check_shape(name, tensor, (len(trajectories), tensor.shape[-1]))
            if tensor.shape[-1] < widest:
                raise ConsistencyError(f"{name} have {tensor.shape[-1]} columns for responses of {widest} tokens")
    for part in slices:
        some = trajectories[part]
        check_equal(some, lambda t: {"temperature": t.request.temperature})
        yield _pack(some, batch, weights[part], part, algorithm, device)


def _pack(
    trajectories: Sequence[TokenTrajectory],
    batch: TrainBatch,
    weights: torch.Tensor,
    part: slice,
    algorithm: TokenAlgorithm | None,
    device: torch.device,
) -> TokenBatch:
    longest = max(trajectory.length for trajectory in trajectories)
    padded = torch.nn.utils.rnn.pad_sequence([t.log_probs for t in trajectories], batch_first=True)
    lengths = torch.tensor([t.length for t in trajectories])
    inside = torch.arange(longest)[None] < lengths[:, None]

    def cut(tensor: torch.Tensor) -> torch.Tensor:
        return torch.where(inside, tensor[part, :longest].detach().cpu(), 0.0).to(device, torch.float32)

    importance = batch.importance_weights
    common = Common(
        first=part.start,
        request_ids=tuple(t.request.request_id for t in trajectories),
        metadata=tuple(t.request.metadata for t in trajectories),
        advantages=batch.advantages[part].detach().to(device, torch.float32),
        weights=weights.to(device),
        trained=weights > 0,
        unit=(torch.arange(len(trajectories)) // batch.unit).to(device),
        teacher=tuple(t.teacher for t in trajectories),
    )
    return TokenBatch(
        common=common,
        rows=tuple(TokenRow(t.inputs, t.response_ids) for t in trajectories),
        temperature=trajectories[0].request.scored_temperature,
        budgets=torch.tensor([t.request.max_new_tokens for t in trajectories]).to(device),
        old_log_probs=padded.to(device, torch.float32) if batch.old_log_probs is None else cut(batch.old_log_probs),
        importance_weights=None if importance is None else cut(importance),
        algorithm=algorithm,
    )
