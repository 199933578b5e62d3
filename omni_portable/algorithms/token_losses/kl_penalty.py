"""Per-token estimators of KL(policy || reference) from log-probs of sampled tokens."""

from __future__ import annotations

import torch

from omni_portable.algorithms.token_losses.names import KLEstimator
from omni_portable.contracts.errors import ConfigError


def kl_penalty(log_prob: torch.Tensor, reference_log_prob: torch.Tensor, estimator: KLEstimator) -> torch.Tensor:
    """(B, T) estimate per token; with d = log_prob - reference_log_prob:

    - 'kl' (k1): d;  'abs': |d|;  'mse' (k2): d^2 / 2.
    - 'low_var_kl' (k3): e^-d + d - 1, with d clamped to [-20, 20] and the result to [-10, 10].

    Source: J. Schulman, 'Approximating KL divergence' (2020); names and clamps as in verl.
    """
    difference = log_prob - reference_log_prob
    if estimator == "kl":
        return difference
    if estimator == "abs":
        return difference.abs()
    if estimator == "mse":
        return 0.5 * difference**2
    if estimator == "low_var_kl":
        bounded = difference.clamp(-20.0, 20.0)
        return (torch.exp(-bounded) + bounded - 1.0).clamp(-10.0, 10.0)
    raise ConfigError(f"unknown KL estimator '{estimator}'", choices=("kl", "abs", "mse", "low_var_kl"))
