"""One denoising step from sigma to sigma_next, and the log-prob of a step that was taken.

Notation: x latents, v model output (velocity, d x / d sigma), dt = sigma' - sigma < 0, eta noise level, e unit noise.
Every kernel is a Gaussian transition x' = mean + std * e, where `std` is always the full standard deviation; published
code has another convention for the flow-SDE (see :func:`published_std`).

Sources: 'sde' Flow-GRPO (arXiv 2505.05470), 'cps' coefficients-preserving sampling (arXiv 2509.05952), 'dance_sde'
DanceGRPO (arXiv 2505.07818). Everything is fp32 and elementwise per row: the same row gives the same bits in any batch.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch

from omni_portable.contracts.errors import ConfigError
from omni_portable.contracts.rollout import StepKind
from omni_portable.samplers.reduce import expand_rows, per_row, row_mean

STOCHASTIC_KINDS: tuple[StepKind, ...] = ("sde", "cps", "dance_sde")
NEARLY_ONE = 1.0 - 1e-5
"""Sigmas from here on count as 1: with some shifts the scheduler's own rounding makes the first sigma 1 +- 4e-7."""
_LOG_SQRT_2PI = math.log(math.sqrt(2.0 * math.pi))


@dataclass(frozen=True)
class StepMoments:
    """The Gaussian transition of B rows.

    Args:
        mean: (B, ...) fp32; carries the gradient of the velocity.
        std: (B,) fp32, full transition standard deviation (sqrt(-dt) included); 0 for an ODE step.
        dt: (B,) fp32, sigma_next - sigma, negative.
    """

    mean: torch.Tensor
    std: torch.Tensor
    dt: torch.Tensor


def step_moments(
    kind: StepKind,
    sample: torch.Tensor,
    velocity: torch.Tensor,
    sigma: torch.Tensor,
    sigma_next: torch.Tensor,
    sigma_max: float,
    noise_level: float,
) -> StepMoments:
    """Mean and standard deviation of the next latents.

    Args:
        kind: 'ode', 'sde', 'cps' or 'dance_sde'.
        sample: (B, ...) fp32 latents at `sigma`.
        velocity: (B, ...) model output in any floating dtype; computed with in fp32.
        sigma / sigma_next: (B,) fp32 noise levels, one per row.
        sigma_max: the schedule's second sigma; the flow-SDE uses it where sigma is 1.
        noise_level: eta >= 0 of the kernel (ignored by 'ode'); 0 makes every kernel deterministic.

    Raises:
        ConfigError: unknown kind, or a negative or non-finite noise level.
        TypeError: latents or sigmas that are not fp32.
        ValueError: shapes that do not belong together.
    """
    if kind not in _KERNELS:
        raise ConfigError(f"unknown step kind '{kind}'", choices=sorted(_KERNELS))
    if not (math.isfinite(noise_level) and noise_level >= 0.0):
        raise ConfigError(
            f"noise_level={noise_level} is not a finite number >= 0", remedy="published values: 0.7 to 1.3"
        )
    _check(sample, velocity, sigma, sigma_next)
    return _KERNELS[kind](sample, velocity.float(), sigma, sigma_next, sigma_max, noise_level)


def draw(moments: StepMoments, noise: torch.Tensor) -> torch.Tensor:
    """Next latents (B, ...) fp32 from unit noise (B, ...) fp32; rows of std 0 are the mean itself."""
    return moments.mean + expand_rows(moments.std, moments.mean) * noise


def log_prob(
    kind: StepKind, next_sample: torch.Tensor, moments: StepMoments, include_normalizer: bool = True
) -> torch.Tensor:
    """(B,) fp32 log-prob of `next_sample`, the *mean* over latent elements (as published, not the sum).

    'sde' and 'dance_sde': the Gaussian log-density, without -ln(std) - ln sqrt(2 pi) where `include_normalizer` is
    false. 'cps' keeps its published form -(x' - mean)^2, which is no density: it has neither variance nor normaliser,
    and `include_normalizer` has no effect.

    Raises:
        ConfigError: an ODE step, or a row of std 0 (noise level 0, or the last step of 'cps'): there is no density.
    """
    if kind == "ode" or bool((moments.std <= 0.0).any()):
        raise ConfigError(
            f"a deterministic '{kind}' step has no log-prob: its standard deviation is 0",
            remedy="set a noise level > 0 and keep steps of std 0 (the last one of 'cps') out of the stochastic steps",
            choices=STOCHASTIC_KINDS,
        )
    error = row_mean((next_sample.detach() - moments.mean) ** 2)
    if kind == "cps":
        return -error
    value = -error / (2.0 * moments.std**2)
    if include_normalizer:
        value = value - per_row(torch.log, moments.std) - _LOG_SQRT_2PI
    return value


def published_std(kind: str, std: torch.Tensor, dt: torch.Tensor) -> torch.Tensor:
    """The `std_dev_t` of published code, (B,): without sqrt(-dt) for 'sde', the full standard deviation otherwise."""
    return std / torch.sqrt(-dt) if kind == "sde" else std


def _ode(
    x: torch.Tensor, v: torch.Tensor, sigma: torch.Tensor, sigma_next: torch.Tensor, sigma_max: float, eta: float
) -> StepMoments:
    """Euler: mean = x + v dt, std = 0."""
    dt = sigma_next - sigma
    return StepMoments(x + v * expand_rows(dt, x), torch.zeros_like(sigma), dt)


def _sde(
    x: torch.Tensor, v: torch.Tensor, sigma: torch.Tensor, sigma_next: torch.Tensor, sigma_max: float, eta: float
) -> StepMoments:
    """Flow-SDE: s = eta sqrt(sigma / (1 - sigma*)), sigma* = sigma, or sigma_max where sigma is (nearly) 1.

    mean = x (1 + s^2 dt / (2 sigma)) + v (1 + s^2 (1 - sigma) / (2 sigma)) dt,  std = s sqrt(-dt).
    """
    if sigma_max >= NEARLY_ONE:
        raise ConfigError(
            f"the schedule's second sigma is {sigma_max}: the flow-SDE's variance is infinite there",
            remedy="use a smaller shift or fewer steps, or another step kind",
            choices=("cps", "dance_sde"),
        )
    dt = sigma_next - sigma
    below_one = torch.where(sigma >= NEARLY_ONE, torch.full_like(sigma, sigma_max), sigma)
    s = torch.sqrt(sigma / (1.0 - below_one)) * eta
    drift = s**2 / (2.0 * sigma)
    of_sample = expand_rows(1.0 + drift * dt, x)
    of_velocity = expand_rows((1.0 + drift * (1.0 - sigma)) * dt, x)
    return StepMoments(x * of_sample + v * of_velocity, s * torch.sqrt(-dt), dt)


def _cps(
    x: torch.Tensor, v: torch.Tensor, sigma: torch.Tensor, sigma_next: torch.Tensor, sigma_max: float, eta: float
) -> StepMoments:
    """Coefficients-preserving: s = sigma' sin(eta pi / 2), x0 = x - sigma v, x1 = x + (1 - sigma) v.

    mean = x0 (1 - sigma') + x1 sqrt(sigma'^2 - s^2),  std = s (0 at the last step, where sigma' is 0).
    """
    std = sigma_next * math.sin(eta * math.pi / 2.0)
    clean = x - expand_rows(sigma, x) * v
    noise = x + expand_rows(1.0 - sigma, x) * v
    kept = torch.sqrt(torch.clamp(sigma_next**2 - std**2, min=0.0))
    return StepMoments(clean * expand_rows(1.0 - sigma_next, x) + noise * expand_rows(kept, x), std, sigma_next - sigma)


def _dance_sde(
    x: torch.Tensor, v: torch.Tensor, sigma: torch.Tensor, sigma_next: torch.Tensor, sigma_max: float, eta: float
) -> StepMoments:
    """DanceGRPO: x0 = x - sigma v, score = -(x - (1 - sigma) x0) / sigma^2.

    mean = x + v dt - eta^2 / 2 * score * dt,  std = eta sqrt(-dt).
    """
    dt = sigma_next - sigma
    step = expand_rows(dt, x)
    clean = x - expand_rows(sigma, x) * v
    score = -(x - expand_rows(1.0 - sigma, x) * clean) / expand_rows(sigma**2, x)
    return StepMoments(x + v * step - (0.5 * eta**2) * score * step, eta * torch.sqrt(-dt), dt)


_KERNELS: dict[str, Callable[..., StepMoments]] = {"ode": _ode, "sde": _sde, "cps": _cps, "dance_sde": _dance_sde}


def _check(sample: torch.Tensor, velocity: torch.Tensor, sigma: torch.Tensor, sigma_next: torch.Tensor) -> None:
    for name, tensor in (("sample", sample), ("sigma", sigma), ("sigma_next", sigma_next)):
        if tensor.dtype != torch.float32:
            raise TypeError(f"{name} must be float32, got {tensor.dtype}: the sampler never computes in less")
    if velocity.shape != sample.shape:
        raise ValueError(f"velocity {tuple(velocity.shape)} and sample {tuple(sample.shape)} differ in shape")
    for name, tensor in (("sigma", sigma), ("sigma_next", sigma_next)):
        if tensor.shape != sample.shape[:1]:
            raise ValueError(
                f"{name} has shape {tuple(tensor.shape)}, expected one value per row, ({sample.shape[0]},)"
            )
