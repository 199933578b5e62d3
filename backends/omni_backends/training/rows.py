"""What one optimizer step leaves behind per row, and how it becomes scalar metrics."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from omni_portable.contracts.algorithm import LossRows, Rows
from omni_portable.contracts.errors import NonFiniteError
from omni_portable.contracts.tokens import TokenRows

RATIO = "actor/ratio"
"""Row metric of which the mean, the standard deviation and the largest deviation from 1 are reported."""


class RowLog:
    """Rows of one mini-batch, kept on the device until the end so that logging costs no synchronisation."""

    def __init__(self) -> None:
        self._losses: list[torch.Tensor] = []
        self._weights: list[torch.Tensor] = []
        self._metrics: dict[str, list[torch.Tensor]] = {}
        self._sample_ids: list[str] = []
        self._steps: list[torch.Tensor] = []
        self._log_probs: list[torch.Tensor] = []
        self._norms: list[tuple[tuple[str, ...], torch.Tensor]] = []

    def add_rows(self, result: LossRows, rows: Rows | TokenRows) -> None:
        """Record R rows of one (micro-batch, step), or those tokens of (B, L) rows that have a weight."""
        if self._metrics and self._metrics.keys() != result.metrics.keys():
            raise ValueError(f"row metrics changed from {sorted(self._metrics)} to {sorted(result.metrics)}")
        tokens = rows.weight > 0 if rows.weight.dim() == 2 else ...
        self._losses.append(result.loss.detach()[tokens])
        self._weights.append(rows.weight[tokens])
        self._sample_ids.extend(_ids_by_row(rows))
        for name, values in result.metrics.items():
            self._metrics.setdefault(name, []).append(values.detach()[tokens])

    def add_log_probs(self, log_probs: torch.Tensor) -> None:
        """(B,) log-probs of the next stored step of the present micro-batch, or (B, L) of its tokens."""
        self._steps.append(log_probs if log_probs.dim() == 2 else log_probs[:, None])

    def end_micro_batch(self, request_ids: tuple[str, ...], gradient_norm: torch.Tensor | None) -> None:
        """Close a micro-batch; `gradient_norm` is that of everything accumulated so far, where it is known."""
        self._log_probs.append(torch.cat(self._steps, dim=1))
        self._steps = []
        if gradient_norm is not None:
            self._norms.append((request_ids, gradient_norm))

    def extend(self, other: RowLog) -> None:
        """Append the rows of the micro-batches that follow (from another process)."""
        if self._metrics and other._metrics and self._metrics.keys() != other._metrics.keys():
            raise ValueError(f"row metrics changed from {sorted(self._metrics)} to {sorted(other._metrics)}")
        self._losses += other._losses
        self._weights += other._weights
        self._sample_ids += other._sample_ids
        self._log_probs += other._log_probs
        self._norms += other._norms
        for name, values in other._metrics.items():
            self._metrics.setdefault(name, []).extend(values)

    def log_probs(self) -> torch.Tensor:
        """(N, W) fp32 on the CPU, in sample order; shorter ones are filled up with NaN."""
        return filled_up(self._log_probs).to("cpu")

    def check_finite(self) -> None:
        """Raise NonFiniteError naming the samples whose loss, or the micro-batch whose gradient, is not finite."""
        bad = (~torch.isfinite(torch.cat(self._losses))).nonzero().flatten().tolist()
        if bad:
            names = list(dict.fromkeys(self._sample_ids[i] for i in bad))
            raise _non_finite(f"the loss of {len(names)} sample(s) is not finite: {', '.join(names)}")
        for request_ids, norm in self._norms:
            check_norm(float(norm), request_ids)

    def metrics(self, total_weight: float | None = None) -> dict[str, float]:
        """Weighted means over all rows, plus 'actor/loss' and the statistics of the ratio.

        Args:
            total_weight: what the loss is divided by, where that is not the sum of the rows' weights.

        The standard deviation is the unbiased one for weights, sqrt(sum w (x - m)^2 / (V1 - V2 / V1)) with V1 = sum w
        and V2 = sum w^2 (for weights of 0 and 1 the usual n - 1 form); 0 where a single row leaves it undefined.
        """
        weights = torch.cat(self._weights).double()
        columns = {name: torch.cat(parts).double() for name, parts in self._metrics.items()}
        loss = torch.cat(self._losses).double()
        share = float((loss * weights).sum()) / total_weight if total_weight else _mean(loss, weights)
        result = {"actor/loss": share}
        result.update({name: _mean(values, weights) for name, values in columns.items() if name != RATIO})
        if RATIO in columns:
            ratio = columns[RATIO]
            result["actor/ratio_mean"] = mean = _mean(ratio, weights)
            total = weights.sum()
            freedom = float(total - weights.square().sum() / total)
            spread = float((weights * (ratio - mean).square()).sum())
            result["actor/ratio_std"] = (spread / freedom) ** 0.5 if freedom > 0 else 0.0
            result["actor/ratio_max_dev"] = float((ratio - 1).abs().max())
        return result


def filled_up(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    """(N, W) from tensors of any widths, NaN where one ends before the widest."""
    widest = max(part.shape[1] for part in parts)
    pad = torch.nn.functional.pad
    return torch.cat([pad(part, (0, widest - part.shape[1]), value=torch.nan) for part in parts])


def check_norm(norm: float, request_ids: Sequence[str]) -> None:
    """Raise NonFiniteError naming the samples after which the gradient norm is not finite."""
    if not math.isfinite(norm):
        raise _non_finite(f"the gradient norm is {norm} after the samples {', '.join(request_ids)}")


def _ids_by_row(rows: Rows | TokenRows) -> list[str]:
    if rows.weight.dim() == 1:
        return list(rows.sample_ids)
    counts = (rows.weight > 0).sum(dim=1).tolist()
    return [name for name, count in zip(rows.sample_ids, counts, strict=True) for _ in range(count)]


def _mean(values: torch.Tensor, weights: torch.Tensor) -> float:
    return float((values * weights).sum() / weights.sum())


def _non_finite(problem: str) -> NonFiniteError:
    return NonFiniteError(
        problem + "; the weights and the optimizer were left as they were",
        remedy="lower actor.lr or the noise level, look at these samples' rewards and latents, or train in float32",
    )
