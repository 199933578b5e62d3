"""Flow-DPPO: instead of clipping ratios, drop the rows that have moved too far in the direction they are pushed."""

from __future__ import annotations

import torch

from omni_portable.algorithms.kl import gaussian_kl
from omni_portable.contracts.algorithm import LossRows
from omni_portable.samplers.reduce import row_mean


def flow_dppo_loss(
    log_prob: torch.Tensor,
    old_log_prob: torch.Tensor,
    advantage: torch.Tensor,
    mean: torch.Tensor,
    old_mean: torch.Tensor,
    std: torch.Tensor,
    *,
    kl_mask_threshold: float,
    scale_kl_by_variance: bool = True,
    importance_weight: torch.Tensor | None = None,
) -> LossRows:
    """-A ratio, or 0 where the divergence reached the threshold and the update would increase it further.

    The divergence of a row is K = mean((mean - old_mean)^2) / (2 std^2), or without the variance. A row is dropped when
    K >= kl_mask_threshold and (ratio > 1 and A > 0, or ratio < 1 and A < 0); dropped rows stay in the denominator.

    Args:
        log_prob / mean: (R,) / (R, ...) fp32 with gradient, of the current policy.
        old_log_prob / old_mean: the same under the policy that ratios are taken against.
        advantage / importance_weight: (R,) fp32.
        std: (R,) the *full* transition standard deviation. Published code multiplies its std_dev by sqrt(-dt), which is
            right for the flow-SDE only and counts the step size twice for 'cps' and 'dance_sde'.

    Source: VeRL-Omni's flow_dppo.
    """
    log_ratio = log_prob - old_log_prob
    ratio = torch.exp(log_ratio)
    with torch.no_grad():
        divergence = (
            gaussian_kl(mean, old_mean, std) if scale_kl_by_variance else row_mean((mean - old_mean) ** 2) / 2.0
        )
        far = divergence >= kl_mask_threshold
        up = far & (ratio > 1.0) & (advantage > 0.0)
        down = far & (ratio < 1.0) & (advantage < 0.0)
    dropped = up | down
    loss = torch.where(dropped, torch.zeros_like(ratio), -advantage * ratio)
    if importance_weight is not None:
        loss = loss * importance_weight.detach()
    return LossRows(
        loss,
        {
            "actor/ppo_kl": -log_ratio.detach(),
            "actor/approx_kl": 0.5 * log_ratio.detach() ** 2,
            "actor/ratio": ratio.detach(),
            "actor/kl_new_old_mean": divergence,
            "actor/kl_mask_fraction": far.float(),
            "actor/pos_rm_fraction": up.float(),
            "actor/neg_rm_fraction": down.float(),
            "actor/masked_fraction": dropped.float(),
            "actor/unmasked_fraction": (~dropped).float(),
        },
    )
