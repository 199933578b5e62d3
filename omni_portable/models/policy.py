"""One denoising transition: the same function draws it in a rollout and scores it in the actor's replay.

What differs between the two is only whether the next latents are drawn from noise or given. Everything else (schedule,
forward pass, guidance, moments, log-prob) is the same code on the same tensors, so that before any update the ratio of
the two probabilities is exactly 1.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from omni_portable.contracts.errors import ConsistencyError
from omni_portable.contracts.model import DiffusionAdapter
from omni_portable.contracts.rollout import Conditioning, Schedule, StepKind
from omni_portable.samplers.kernels import draw, log_prob, step_moments

NEGATIVE = "negative."
"""Prefix of the negative prompt's tensors in a flat conditioning."""


@dataclass(frozen=True)
class Transition:
    """Outcome of :func:`transition` for B rows.

    Args:
        next_latents: (B, ...) fp32, drawn or as given.
        log_prob: (B,) fp32 of `next_latents`, mean over latent elements; NaN in rows that were not stochastic (an ODE
            step has no log-prob, and NaN cannot be mistaken for one).
        mean: (B, ...) fp32, transition mean (of an ODE row: its result).
        std: (B,) fp32, the full transition standard deviation; 0 in ODE rows.
        dt: (B,) fp32, negative.
        velocity: (B, ...) fp32, model output after guidance.
    """

    next_latents: torch.Tensor
    log_prob: torch.Tensor
    mean: torch.Tensor
    std: torch.Tensor
    dt: torch.Tensor
    velocity: torch.Tensor


def transition(
    adapter: DiffusionAdapter,
    *,
    latents: torch.Tensor,
    step_index: torch.Tensor,
    schedule: Schedule,
    kind: StepKind,
    noise_level: float,
    conditioning: Conditioning,
    include_normalizer: bool = True,
    negative: Conditioning | None = None,
    guidance_scale: float = 1.0,
    stochastic: torch.Tensor | None = None,
    noise: torch.Tensor | None = None,
    next_latents: torch.Tensor | None = None,
) -> Transition:
    """Take one step of the schedule for B rows, each at its own step index.

    Args:
        adapter: model whose `velocity` is the policy.
        latents: (B, ...) fp32.
        step_index: (B,) int64, best on the CPU; row b goes from sigmas[step_index[b]] to the next sigma.
        schedule: shared by the rows.
        kind: step kernel of the stochastic rows; 'ode' makes all rows deterministic.
        noise_level: eta of the kernel.
        conditioning / negative: batched tensors of the prompts; `negative` is used where guidance_scale is not 1, and
            families with classifier-free guidance then require it.
        include_normalizer: whether log-probs include the Gaussian normaliser.
        guidance_scale: 1 means one forward without guidance.
        stochastic: (B,) bool on the CPU (no device synchronisation); None means all rows unless `kind` is 'ode'.
        noise: (B, ...) fp32 unit noise to draw with; rows that are not stochastic ignore theirs.
        next_latents: (B, ...) fp32 to score; then every row must be stochastic, and gradients flow into `log_prob`.

    Raises:
        ConsistencyError: arguments that contradict each other (both or neither of noise and next latents for
            stochastic rows, scoring of a deterministic row, an index outside the schedule).
    """
    rows = _stochastic_rows(kind, latents.shape[0], stochastic)
    _check(rows, step_index, schedule, latents, noise, next_latents)
    index = step_index.to(device=latents.device)
    sigmas = torch.tensor(schedule.sigmas, dtype=torch.float32, device=latents.device)
    sigma, sigma_next = sigmas[index], sigmas[index + 1]
    guided = negative if guidance_scale != 1.0 else None
    velocity = adapter.velocity(latents, sigma * schedule.timestep_scale, conditioning, guidance_scale, guided)

    def part(step: StepKind, chosen: torch.Tensor | None) -> Transition:
        sample, v, s, s_next = (_take(t, chosen) for t in (latents, velocity, sigma, sigma_next))
        moments = step_moments(step, sample, v, s, s_next, schedule.sigma_max, noise_level)
        if step == "ode":
            none = torch.full_like(moments.std, torch.nan)
            return Transition(moments.mean, none, moments.mean, moments.std, moments.dt, v)
        given = next_latents if next_latents is not None else draw(moments, _take(_present(noise), chosen))
        log_probs = log_prob(step, given.detach(), moments, include_normalizer)
        return Transition(given, log_probs, moments.mean, moments.std, moments.dt, v)

    if bool(rows.all()):
        return part(kind, None)
    if not bool(rows.any()):
        return part("ode", None)
    noisy, plain = (mask.nonzero().flatten().to(latents.device) for mask in (rows, ~rows))
    return _merge(part(kind, noisy), part("ode", plain), torch.argsort(torch.cat([noisy, plain])), velocity)


def join_conditioning(positive: Conditioning, negative: Conditioning | None) -> Conditioning:
    """One flat mapping of both prompts' tensors, the negative ones under the prefix 'negative.'."""
    for name in positive:
        if name.startswith(NEGATIVE):
            raise ConsistencyError(f"the conditioning '{name}' starts with the reserved prefix '{NEGATIVE}'")
    return {**positive, **{NEGATIVE + name: tensor for name, tensor in (negative or {}).items()}}


def split_conditioning(flat: Conditioning) -> tuple[Conditioning, Conditioning | None]:
    """Inverse of :func:`join_conditioning`; (positive, None) where there is no negative part."""
    positive = {name: tensor for name, tensor in flat.items() if not name.startswith(NEGATIVE)}
    negative = {name.removeprefix(NEGATIVE): tensor for name, tensor in flat.items() if name.startswith(NEGATIVE)}
    return positive, negative or None


def _stochastic_rows(kind: StepKind, count: int, stochastic: torch.Tensor | None) -> torch.Tensor:
    if kind == "ode":
        if stochastic is not None and bool(stochastic.any()):
            raise ConsistencyError("rows are marked stochastic, but the step kernel is 'ode'")
        return torch.zeros(count, dtype=torch.bool)
    if stochastic is None:
        return torch.ones(count, dtype=torch.bool)
    if stochastic.shape != (count,) or stochastic.dtype != torch.bool:
        raise ConsistencyError(f"stochastic is {tuple(stochastic.shape)} {stochastic.dtype}, expected ({count},) bool")
    return stochastic.to("cpu")


def _check(
    rows: torch.Tensor,
    step_index: torch.Tensor,
    schedule: Schedule,
    latents: torch.Tensor,
    noise: torch.Tensor | None,
    next_latents: torch.Tensor | None,
) -> None:
    if step_index.shape != (latents.shape[0],):
        raise ConsistencyError(f"{tuple(step_index.shape)} step indices for {latents.shape[0]} rows")
    if not 0 <= int(step_index.min()) <= int(step_index.max()) < schedule.num_steps:
        raise ConsistencyError(
            f"step index {int(step_index.max())} is outside a schedule of {schedule.num_steps} steps ({schedule.key})"
        )
    if next_latents is not None and (noise is not None or not bool(rows.all())):
        raise ConsistencyError("next latents can be scored in stochastic rows only, and without noise")
    if next_latents is None and noise is None and bool(rows.any()):
        raise ConsistencyError("stochastic rows need either noise to draw with or next latents to score")
    for name, tensor in (("latents", latents), ("noise", noise), ("next_latents", next_latents)):
        if tensor is not None and (tensor.dtype != torch.float32 or tensor.shape != latents.shape):
            raise ConsistencyError(
                f"{name} are {tuple(tensor.shape)} {tensor.dtype}, expected {tuple(latents.shape)} torch.float32"
            )


def _merge(first: Transition, second: Transition, order: torch.Tensor, velocity: torch.Tensor) -> Transition:
    """Rows of two parts, back in their places."""

    def both(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.cat([a, b])[order]

    return Transition(
        both(first.next_latents, second.next_latents),
        both(first.log_prob, second.log_prob),
        both(first.mean, second.mean),
        both(first.std, second.std),
        both(first.dt, second.dt),
        velocity,
    )


def _take(tensor: torch.Tensor, rows: torch.Tensor | None) -> torch.Tensor:
    return tensor if rows is None else tensor[rows]


def _present(noise: torch.Tensor | None) -> torch.Tensor:
    if noise is None:
        raise ConsistencyError("stochastic rows need noise to draw with")
    return noise
