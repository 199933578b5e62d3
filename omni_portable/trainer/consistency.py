"""Do actor and rollout agree? Figures for every run, and the proof that a weight update arrived."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

import torch

from omni_portable.contracts.errors import ConsistencyError, WeightSyncError
from omni_portable.contracts.rollout import RolloutEngine, RolloutRequest, Trajectory
from omni_portable.contracts.training import Policy, TrainEngine


def stack_log_probs(trajectories: Sequence[Trajectory]) -> torch.Tensor:
    """(N, W) fp32 log-probs as the rollout engine recorded them."""
    return torch.stack([t.log_probs for t in trajectories])


def logprob_metrics(
    actor: torch.Tensor, rollout: torch.Tensor, timesteps: torch.Tensor | None = None
) -> dict[str, float]:
    """Gap of two sets of log-probs of the same transitions, both under the same weights.

    Args:
        actor / rollout: (N, W) fp32.
        timesteps: (N, W), to report the mean gap per timestep value.

    Returns:
        ``rollout_corr/*`` and the Pearson correlation of probabilities (1 when both are constant and equal).
        `kl` is the k1 estimate mean(rollout - actor).
    """
    actor, rollout = actor.double().flatten(), rollout.double().flatten()
    gap = (actor - rollout).abs()
    ratio = (actor - rollout).exp()
    metrics = {
        "rollout_corr/logprob_abs_diff/mean": gap.mean().item(),
        "rollout_corr/logprob_abs_diff/p99": torch.quantile(gap, 0.99).item(),
        "rollout_corr/logprob_abs_diff/max": gap.max().item(),
        "rollout_corr/kl": (rollout - actor).mean().item(),
        "rollout_corr/ratio_mean": ratio.mean().item(),
        "rollout_corr/ratio_exact_one": (gap == 0).double().mean().item(),
        "training/rollout_actor_probs_pearson_corr": _pearson(actor.exp(), rollout.exp()),
    }
    if timesteps is not None:
        flat = timesteps.flatten()
        for value in flat.unique().tolist():
            metrics[f"rollout_corr/logprob_abs_diff/ts_{value:.4g}"] = gap[flat == value].mean().item()
    return metrics


def _pearson(left: torch.Tensor, right: torch.Tensor) -> float:
    if torch.equal(left, right):
        return 1.0
    left, right = left - left.mean(), right - right.mean()
    scale = left.norm() * right.norm()
    return (left @ right / scale).item() if scale > 0 else 0.0


def check_gap(metrics: Mapping[str, float], limit: float | None) -> None:
    """Raise ConsistencyError when the recipe limits the gap and it is exceeded."""
    gap = metrics["rollout_corr/logprob_abs_diff/max"]
    if limit is not None and gap > limit:
        raise ConsistencyError(
            f"before any update the largest log-prob gap of actor and rollout is {gap:.3e}, above "
            f"consistency.max_logprob_gap={limit:g}",
            remedy="use the same dtype, attention kernel and batch shape on both sides, or raise the limit knowingly",
        )


def check_schedules(trajectories: Sequence[Trajectory]) -> None:
    """Every engine must have run the schedule that its request carries, bit for bit."""
    for trajectory in trajectories:
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


class SyncProof:
    """After each weight sync: checksums on both sides, and a fixed request whose output must change exactly when the
    weights did (it catches engines that accept an update and keep serving the old policy)."""

    def __init__(self, actor: TrainEngine, rollout: RolloutEngine, probe: RolloutRequest | None) -> None:
        self._actor, self._rollout, self._probe = actor, rollout, probe
        self._last: tuple[str, str] | None = None

    async def check(self, policy: Policy = "current") -> None:
        """Run with the engine resumed, after a sync of `policy`.

        Raises:
            WeightSyncError: a tensor differs, or the probe's output contradicts the checksums.
        """
        checksums = self._actor.weights_checksum(policy)
        compare_checksums(checksums, self._rollout.weights_checksum(checksums))
        if self._probe is None:
            return
        weights, output = weights_digest(checksums), await self._run_probe(self._probe)
        if self._last is not None:
            changed_weights, changed_output = weights != self._last[0], output != self._last[1]
            if changed_weights != changed_output:
                raise WeightSyncError(
                    f"the probe's output {'changed' if changed_output else 'did not change'} although the weights "
                    f"{'changed' if changed_weights else 'did not'}: the engine does not serve the weights it holds"
                )
        self._last = (weights, output)

    async def _run_probe(self, probe: RolloutRequest) -> str:
        result = await self._rollout.generate([probe])
        latents = result.trajectories[0].final_latents.contiguous()
        return hashlib.sha256(latents.cpu().numpy().tobytes()).hexdigest()
