"""Do actor and rollout agree? Figures for every run, and the proof that a weight update arrived."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from omni_portable.contracts.algorithm import TrainBatch
from omni_portable.contracts.errors import ConsistencyError, WeightSyncError
from omni_portable.contracts.rollout import RolloutEngine
from omni_portable.contracts.tokens import AnyRequest, AnyTrajectory, TokenTrajectory
from omni_portable.contracts.training import Policy, TrainEngine


def stack_log_probs(trajectories: Sequence[AnyTrajectory]) -> torch.Tensor:
    """(N, W) fp32 log-probs as the rollout engine recorded them; NaN where a response has ended."""
    rows = [t.log_probs for t in trajectories]
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=torch.nan)


def logprob_metrics(
    actor: torch.Tensor, rollout: torch.Tensor, timesteps: torch.Tensor | None = None
) -> dict[str, float]:
    """Gap of two sets of log-probs of the same transitions, both under the same weights.

    Args:
        actor / rollout: (N, W) fp32; where both are NaN (a response has ended) there is nothing to compare.
        timesteps: (N, W), to report the mean gap per timestep value.

    Returns:
        ``rollout_corr/*`` and the Pearson correlation of probabilities (1 when both are constant and equal).
        `kl` is the k1 estimate mean(rollout - actor).
    """
    there = ~(actor.isnan() & rollout.isnan()).flatten()
    actor, rollout = actor.double().flatten()[there], rollout.double().flatten()[there]
    gap = (actor - rollout).abs()
    ratio = (actor - rollout).exp()
    metrics = {
        "rollout_corr/logprob_abs_diff/mean": gap.mean().item(),
        "rollout_corr/logprob_abs_diff/p99": _p99(gap),
        "rollout_corr/logprob_abs_diff/max": gap.max().item(),
        "rollout_corr/kl": (rollout - actor).mean().item(),
        "rollout_corr/ratio_mean": ratio.mean().item(),
        "rollout_corr/ratio_exact_one": (gap == 0).double().mean().item(),
        "training/rollout_actor_probs_pearson_corr": _pearson(actor.exp(), rollout.exp()),
    }
    if timesteps is not None:
        flat = timesteps.flatten()[there]
        for value in flat.unique().tolist():
            metrics[f"rollout_corr/logprob_abs_diff/ts_{value:.4g}"] = gap[flat == value].mean().item()
    return metrics


def _p99(values: torch.Tensor) -> float:
    if values.numel() <= QUANTILE_LIMIT:
        return torch.quantile(values, 0.99).item()
    return values.kthvalue(math.ceil(0.99 * values.numel())).values.item()


def _pearson(left: torch.Tensor, right: torch.Tensor) -> float:
    if torch.equal(left, right):
        return 1.0
    left, right = left - left.mean(), right - right.mean()
    scale = left.norm() * right.norm()
    return (left @ right / scale).item() if scale > 0 else 0.0


def largest_gap(left: torch.Tensor, right: torch.Tensor) -> float:
    """Largest absolute difference where not both are NaN."""
    return (left - right)[~(left.isnan() & right.isnan())].abs().max().item()


def check_gap(metrics: Mapping[str, float], limit: float | None) -> None:
    """Raise ConsistencyError when the recipe limits the gap and it is exceeded."""
    gap = metrics.get("rollout_corr/logprob_abs_diff/max", 0.0)
    if limit is not None and gap > limit:
        raise ConsistencyError(
            f"before any update the largest log-prob gap of actor and rollout is {gap:.3e}, above "
            f"consistency.max_logprob_gap={limit:g}",
            remedy="use the same dtype, attention kernel and batch shape on both sides, or raise the limit knowingly",
        )


def check_schedules(trajectories: Sequence[AnyTrajectory]) -> None:
    """Every engine must have run the schedule that its request carries, bit for bit (responses have none)."""
    for trajectory in trajectories:
        if isinstance(trajectory, TokenTrajectory):
            continue
        wanted = trajectory.request.schedule.fingerprint
        if trajectory.schedule_fingerprint != wanted:
            raise ConsistencyError(
                f"request '{trajectory.request.request_id}' carried schedule {wanted} "
                f"({trajectory.request.schedule.key}), but engine '{trajectory.engine}' ran "
                f"{trajectory.schedule_fingerprint}"
            )


def compare_checksums(actor: Mapping[str, str], rollout: Mapping[str, str]) -> None:
    """Per-tensor proof that both sides hold the same weights; raises WeightSyncError naming the first difference."""
    for name, checksum in actor.items():
        if name not in rollout:
            raise WeightSyncError(f"after the weight sync the rollout engine holds no tensor '{name}'")
        if rollout[name] != checksum:
            raise WeightSyncError(
                f"after the weight sync '{name}' differs: actor {checksum}, rollout {rollout[name]}",
                remedy="do not train on this engine: its updates do not arrive",
            )


def weights_digest(checksums: Mapping[str, str]) -> str:
    """One hash for a set of per-tensor checksums."""
    return hashlib.sha256(repr(sorted(checksums.items())).encode()).hexdigest()


QUANTILE_LIMIT = 1 << 24
"""Elements that torch.quantile takes."""
RESOLUTION = 1e-6
"""Change of the actor's log-probs from which on the probe's output must change too. A smaller one may be lost in
rounding (a small learning rate in a narrow dtype), and the engine is right to return the same bits."""


PROBE_GAP = 1e-3
"""Largest gap in fp32 of a probe's log-probs, as its engine recorded them and as the actor scores them: a hundred times
what kernels that differ explain, and far less than what other weights bring."""


def probe_limit(dtype: str, max_logprob_gap: float | None) -> float | None:
    """How far the probe's log-probs may be from the actor's score.

    Args:
        dtype: of the model; what rounding explains is known for fp32 alone, so that others are judged only by the limit
            of the recipe.
        max_logprob_gap: of the recipe; it holds for batches of training, the probe is drawn alone.
    """
    return max(PROBE_GAP, max_logprob_gap or 0.0) if dtype == "float32" else max_logprob_gap


@dataclass(frozen=True)
class _Seen:
    """What is known of the last sync: weights and output, and the actor's log-probs when the output last changed."""

    weights: str
    output: str
    log_probs: torch.Tensor | None


class SyncProof:
    """After each weight sync: checksums on both sides, and a fixed request whose output must change when, and only
    when, the weights did by more than rounding may hide (it catches engines that accept an update and keep serving the
    old policy), and whose log-probs must be those that the actor gives the same output (it catches engines that hold
    the right weights and compute something else with them).

    Whether a change of the weights is large enough to show is asked of the actor, which scores the transitions of the
    first probe again. Changes too small to show add up until they must.

    Args:
        probe: a request that records transitions; without any, or with deterministic ones among them, every change of
            the weights must show. None: checksums only.
        limit: largest gap of the probe's log-probs to the actor's score; None leaves them unjudged.

    Attributes:
        probe_gap: that gap at the last check; NaN where the probe has no log-probs.
    """

    def __init__(
        self, actor: TrainEngine, rollout: RolloutEngine, probe: AnyRequest | None, *, limit: float | None = None
    ) -> None:
        self._actor, self._rollout, self._probe, self._limit = actor, rollout, probe, limit
        self.probe_gap = math.nan
        self._scored: TrainBatch | None = None
        self._last: _Seen | None = None

    async def check(self, policy: Policy = "current") -> None:
        """Run with the engine resumed, after a sync of `policy`.

        Raises:
            WeightSyncError: a tensor differs, the probe's output contradicts the checksums, or its log-probs the
                actor's score.
        """
        checksums = self._actor.weights_checksum(policy)
        compare_checksums(checksums, self._rollout.weights_checksum(checksums))
        if self._probe is None:
            return
        trajectory = (await self._rollout.generate([self._probe])).trajectories[0]
        self._compare_scores(trajectory, policy)
        if self._scored is None:
            self._scored = TrainBatch([trajectory], torch.zeros(1))
        seen = _Seen(weights_digest(checksums), _output_digest(trajectory), self._score(policy))
        if self._last is not None and seen.output == self._last.output:
            seen = self._require_unchanged(seen, self._last)
        elif self._last is not None and seen.weights == self._last.weights:
            raise WeightSyncError(
                "the probe's output changed although the weights did not: the engine does not serve the weights it "
                "holds, or its kernels do not repeat themselves",
                remedy="set device.deterministic=true, or turn the probe off with consistency.probe=false",
            )
        self._last = seen

    def _score(self, policy: Policy) -> torch.Tensor | None:
        assert self._scored is not None
        if not _has_log_probs(self._scored.trajectories[0]):
            return None
        return self._actor.log_probs(self._scored, policy)

    def _compare_scores(self, trajectory: AnyTrajectory, policy: Policy) -> None:
        """The engine said how probable its output was: so must the actor, under the weights that both now hold."""
        if self._limit is None or not _has_log_probs(trajectory):
            return
        scored = self._actor.log_probs(TrainBatch([trajectory], torch.zeros(1)), policy)
        self.probe_gap = largest_gap(scored.cpu(), stack_log_probs([trajectory]))
        if not self.probe_gap <= self._limit:
            raise WeightSyncError(
                f"after the weight sync engine '{trajectory.engine}' and actor give the probe's output log-probs that "
                f"are {self.probe_gap:.1e} apart (at most {self._limit:.1e}), although their weights are equal",
                remedy="do not train on this engine: its kernels compute something else with these weights. Where the "
                "gap is known and meant, set consistency.max_logprob_gap above it",
            )

    def _require_unchanged(self, seen: _Seen, last: _Seen) -> _Seen:
        """The output is the old one: so must the policy be, as far as it can be told."""
        if seen.weights == last.weights:
            return seen
        moved = math.inf
        if seen.log_probs is not None and last.log_probs is not None:
            moved = largest_gap(seen.log_probs, last.log_probs)
        if not moved <= RESOLUTION:
            raise WeightSyncError(
                "the probe's output did not change although the weights changed"
                + (f" (the actor's log-probs by {moved:.1e})" if math.isfinite(moved) else "")
                + ": the engine does not serve the weights it holds",
                remedy="do not train on this engine: its updates do not take effect",
            )
        return replace(seen, log_probs=last.log_probs)


def _has_log_probs(trajectory: AnyTrajectory) -> bool:
    if isinstance(trajectory, TokenTrajectory):
        return True
    return len(trajectory.step_indices) > 0 and not bool(trajectory.log_probs.isnan().any())


def _output_digest(trajectory: AnyTrajectory) -> str:
    """Of clean latents, or of a response and its log-probs (the same words may be said by another policy)."""
    if isinstance(trajectory, TokenTrajectory):
        parts = [trajectory.response_ids, trajectory.log_probs]
    else:
        parts = [trajectory.final_latents]
    return hashlib.sha256(b"".join(part.contiguous().cpu().numpy().tobytes() for part in parts)).hexdigest()
