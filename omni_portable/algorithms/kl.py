"""KL divergence between the transitions of two policies that share a standard deviation."""

from __future__ import annotations

from typing import Literal

import torch

from omni_portable.contracts.errors import ConfigError
from omni_portable.samplers.kernels import published_std
from omni_portable.samplers.reduce import row_mean

KLKind = Literal["published", "exact"]


def gaussian_kl(mean: torch.Tensor, other_mean: torch.Tensor, std: torch.Tensor) -> torch.Tensor:
    """(R,) KL per latent element of N(mean, std^2) from N(other_mean, std^2): mean((mean - other)^2) / (2 std^2).

    Args:
        mean / other_mean: (R, ...) fp32.
        std: (R,) fp32, positive.
    """
    return row_mean((mean - other_mean) ** 2) / (2.0 * std**2)


def reference_kl(
    mean: torch.Tensor,
    reference_mean: torch.Tensor,
    std: torch.Tensor,
    dt: torch.Tensor,
    step_kind: str,
    kind: KLKind = "published",
) -> torch.Tensor:
    """(R,) KL of the policy's transitions from the reference policy's, mean((mu - mu_ref)^2) / (2 std^2).

    'published' divides by the published std^2 instead, which for the kernel 'sde' lacks -dt.

    Args:
        std: (R,) full transition standard deviation.
        dt: (R,) negative.
        kind: 'exact' divides by the full variance. 'published' divides by the published std_dev_t^2, which for 'sde'
            lacks -dt (so that it is -dt times the exact KL) and equals the full variance for the other kernels.
    """
    if kind not in ("published", "exact"):
        raise ConfigError(f"unknown KL kind '{kind}'", choices=("published", "exact"))
    return gaussian_kl(mean, reference_mean, published_std(step_kind, std, dt) if kind == "published" else std)
