"""Figures on drawn responses: how long they are, and how decoding agrees with one full forward."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from omni_portable.contracts.tokens import AnyTrajectory, TokenTrajectory


def response_metrics(trajectories: Sequence[AnyTrajectory]) -> dict[str, float]:
    """``response/...`` and ``rollout_corr/decode_abs_diff/...``; nothing where no trajectory is of tokens.

    `response/truncated` is the share that ended at max_new_tokens without an end token, `response/mixed_versions` the
    share that several policy versions drew.
    """
    responses = [t for t in trajectories if isinstance(t, TokenTrajectory)]
    if not responses:
        return {}
    lengths = torch.tensor([float(t.length) for t in responses], dtype=torch.float64)
    metrics = {
        "response/length_mean": lengths.mean().item(),
        "response/length_max": lengths.max().item(),
        "response/length_min": lengths.min().item(),
        "response/truncated": sum(t.finish_reason == "length" for t in responses) / len(responses),
        "response/mixed_versions": sum(t.policy_versions is not None for t in responses) / len(responses),
    }
    gap = torch.cat([(t.log_probs - t.sampled_log_probs).abs().double() for t in responses])
    gap = gap[torch.isfinite(gap)]  # an engine may know only one of the two
    if len(gap):
        metrics["rollout_corr/decode_abs_diff/mean"] = gap.mean().item()
        metrics["rollout_corr/decode_abs_diff/max"] = gap.max().item()
    return metrics
