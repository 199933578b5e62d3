"""DiffusionNFT: train on clean samples, towards the good half of an implicit split of the policy into good and bad."""

from __future__ import annotations

from typing import Literal

import torch

from omni_portable.contracts.algorithm import LossRows
from omni_portable.contracts.errors import ConfigError
from omni_portable.samplers.reduce import expand_rows, row_mean

AdvantageMode = Literal["continuous", "positive_only", "negative_only", "one_only", "binary"]


def nft_reward_probability(
    advantages: torch.Tensor, *, advantage_clip: float, mode: AdvantageMode = "continuous"
) -> torch.Tensor:
    """(N,) probability in [0, 1] that a sample is 'good': clamp((A / c) / 2 + 1/2, 0, 1) with A clamped to +- c.

    Args:
        advantages: (N,) fp32 group advantages.
        mode: 'continuous'; 'positive_only' / 'negative_only' keep one sign; 'one_only' 1 where A > 0, else 0;
            'binary' the sign of A.

    Source: DiffusionNFT (arXiv 2509.16117) and VeRL-Omni's modes.
    """
    clipped = advantages.clamp(-advantage_clip, advantage_clip)
    shaped = {
        "continuous": clipped,
        "positive_only": clipped.clamp(min=0.0),
        "negative_only": clipped.clamp(max=0.0),
        "one_only": (clipped > 0.0).to(clipped.dtype),
        "binary": clipped.sign(),
    }
    if mode not in shaped:
        raise ConfigError(f"unknown advantage mode '{mode}'", choices=list(shaped))
    return (shaped[mode] / advantage_clip / 2.0 + 0.5).clamp(0.0, 1.0)


def diffusion_nft_loss(
    prediction: torch.Tensor,
    old_prediction: torch.Tensor,
    clean: torch.Tensor,
    noisy: torch.Tensor,
    t: torch.Tensor,
    reward_probability: torch.Tensor,
    *,
    mix_beta: float,
    advantage_clip: float,
    adaptive_weight_min: float = 1e-5,
    reference_prediction: torch.Tensor | None = None,
    reference_kl_coefficient: float = 0.0,
) -> LossRows:
    """c (r L+ + (1 - r) L-) / beta + k mean((v - v_ref)^2), where L+- is the error of the clean sample implied by

    v+ = beta v + (1 - beta) v_old   and   v- = (1 + beta) v_old - beta v:
    x0+- = noisy - t v+-,   L+- = mean((x0+- - clean)^2) / max(mean|x0+- - clean|, adaptive_weight_min).

    Args:
        prediction: (R, ...) fp32 velocities with gradient; `old_prediction` and `reference_prediction` without.
        clean / noisy: (R, ...) fp32, noisy = (1 - t) clean + t noise.
        t: (R,) in [0, 1].
        reward_probability: (R,) r, from :func:`nft_reward_probability`.
        mix_beta / advantage_clip / reference_kl_coefficient: beta, c, k.

    Raises:
        ValueError: a reference coefficient without reference predictions.

    Source: DiffusionNFT (arXiv 2509.16117), as implemented by VeRL-Omni.
    """
    positive = mix_beta * prediction + (1.0 - mix_beta) * old_prediction
    negative = (1.0 + mix_beta) * old_prediction - mix_beta * prediction
    errors = [_clean_error(v, clean, noisy, t, adaptive_weight_min) for v in (positive, negative)]
    r = reward_probability
    policy = advantage_clip * (r * errors[0] + (1.0 - r) * errors[1]) / mix_beta
    loss = policy
    metrics = {
        "actor/policy_loss": policy.detach(),
        "actor/positive_loss": errors[0].detach(),
        "actor/negative_loss": errors[1].detach(),
        "actor/old_deviate": row_mean((prediction - old_prediction) ** 2).detach(),
        "actor/reward_prob_mean": r.detach(),
    }
    if reference_prediction is not None:
        reference = row_mean((prediction - reference_prediction) ** 2)
        loss = policy + reference_kl_coefficient * reference
        metrics["actor/ref_kl_loss"] = reference.detach()
    elif reference_kl_coefficient:
        raise ValueError("a reference KL coefficient was given, but no reference prediction")
    return LossRows(loss, {**metrics, "actor/total_loss": loss.detach()})


def _clean_error(
    velocity: torch.Tensor, clean: torch.Tensor, noisy: torch.Tensor, t: torch.Tensor, weight_min: float
) -> torch.Tensor:
    error = noisy - expand_rows(t, noisy) * velocity - clean
    weight = row_mean(error.detach().abs()).clamp(min=weight_min)
    return row_mean(error**2) / weight
