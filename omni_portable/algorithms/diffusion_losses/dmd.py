"""Distribution matching distillation: move a generator's samples by the difference of two denoisers' opinions."""

from __future__ import annotations

import torch

from omni_portable.samplers.reduce import expand_rows, row_mean


def clean_prediction(noisy: torch.Tensor, velocity: torch.Tensor, sigma: torch.Tensor) -> torch.Tensor:
    """(R, ...) clean samples that velocities stand for: x0 = x - sigma v, where x = (1 - sigma) x0 + sigma e.

    Args:
        noisy / velocity: (R, ...) fp32.
        sigma: (R,) fp32 in (0, 1].
    """
    return noisy - expand_rows(sigma, noisy) * velocity


def distribution_matching_gradient(
    clean: torch.Tensor,
    noisy: torch.Tensor,
    sigma: torch.Tensor,
    teacher_velocity: torch.Tensor,
    fake_velocity: torch.Tensor,
    *,
    normaliser_min: float = 1e-5,
) -> torch.Tensor:
    """(R, ...) fp32 without gradient: the direction in which a sample becomes less likely under the teacher than among
    the generator's own samples; descent follows its negative.

        g = (x_fake - x_teacher) / max(mean|clean - x_teacher|, normaliser_min)

    with x_fake and x_teacher from :func:`clean_prediction`. Both denoisers see the same mixture, so that
    x_fake - x_teacher = sigma^2 / (1 - sigma) (score_fake - score_teacher), the gradient of the KL divergence of the
    noised distributions up to a positive factor; the mean is over a row's elements.

    Args:
        clean: (R, ...) fp32, the generator's samples.
        noisy: (R, ...) fp32, (1 - sigma) clean + sigma e.
        sigma: (R,) fp32 in (0, 1].
        teacher_velocity / fake_velocity: (R, ...) fp32, at `noisy`.

    Source: DMD (arXiv 2311.18828, equations 7 and 8) and DMD2 (arXiv 2405.14867).
    """
    with torch.no_grad():
        teacher = clean_prediction(noisy, teacher_velocity, sigma)
        fake = clean_prediction(noisy, fake_velocity, sigma)
        normaliser = row_mean((clean - teacher).abs()).clamp(min=normaliser_min)
        return (fake - teacher) / expand_rows(normaliser, clean)


def distribution_matching_loss(clean: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
    """(R,) surrogate 1/2 mean((clean - stop(clean - g))^2), whose derivative by `clean` is g / (elements of a row).

    Args:
        clean: (R, ...) fp32 with gradient.
        gradient: (R, ...) fp32, from :func:`distribution_matching_gradient`.
    """
    target = (clean - gradient).detach()
    return 0.5 * row_mean((clean - target) ** 2)
