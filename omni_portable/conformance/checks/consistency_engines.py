"""Rollout engines with processes of their own draw what the native engine draws and the actor scores."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import torch

from omni_portable.conformance.check import Check, Measurement, NotRun, Outcome
from omni_portable.conformance.context import Context
from omni_portable.conformance.evidence.engines import Sides, draw, engines_for, opened_sides
from omni_portable.conformance.evidence.pair import diffusion_samples
from omni_portable.contracts.rollout import Trajectory
from omni_portable.contracts.tokens import AnyTrajectory
from omni_portable.trainer.consistency import logprob_metrics, stack_log_probs

LOG_PROB_GAP = 1e-5
PEARSON = 0.9999
LATENT_GAP = 1e-4
MEDIA_GAP = 1e-4
EIGHT_BIT_STEP = 1.0 / 255.0
"""Bounds in fp32: two implementations of one model differ by the order of their sums. In other dtypes the figures are
recorded and not judged: there the order decides the last of eight or eleven bits of every layer.

The log-prob of a step that was just drawn is a function of its noise: it shows that two engines drew the same noise,
and the latents show that their transformers agree. The actor's log-probs depend on both.

Media leave an engine rounded to 8 bits, where the smallest difference before can decide a whole step after: their mean
gap is held to the bound itself, their largest one to one step more. Media that stay floats are held to the bound."""

REORDERED = (5, 3, 0, 7, 1, 6, 2, 4)


def _engines(context: Context) -> Outcome:
    """One engine after the other; those that are not installed are named."""
    found: list[Measurement] = []
    absent: list[str] = []
    names = engines_for(context)
    for name in names:
        try:
            with opened_sides(context, name) as sides:
                found += asyncio.run(_compared(sides, name, judged=context.model.dtype == "float32"))
        except NotRun as reason:
            absent.append(str(reason))
    if not found:
        raise NotRun("; ".join(absent))
    return Outcome(
        found,
        "The same requests, after an optimizer step and a proved sync, drawn by each engine in one batch, alone and in "
        "another order." + (f" Not run: {'; '.join(absent)}." if absent else ""),
        {
            "dtype": context.model.dtype,
            "engines": ", ".join(name for name in names if any(m.name.startswith(f"{name}/") for m in found)),
            "reference": "native",
            "train engine": context.config.actor.engine,
        },
    )


async def _compared(sides: Sides, name: str, *, judged: bool) -> list[Measurement]:
    await sides.share_new_weights()
    ours, theirs = await draw(sides.engine, sides.requests), await draw(sides.native, sides.requests)
    recorded = stack_log_probs(ours)
    actor = logprob_metrics(sides.replayed(ours), recorded)
    order = [row for row in REORDERED if row < len(ours)]
    alone = await draw(sides.engine, sides.requests[:1])
    shuffled = await draw(sides.engine, [sides.requests[row] for row in order])
    gaps = {
        "log_prob_gap_to_actor": actor["rollout_corr/logprob_abs_diff/max"],
        "log_prob_gap_to_native": _log_prob_gap(ours, theirs),
        "log_prob_gap_alone": _log_prob_gap(ours[:1], alone),
        "log_prob_gap_in_another_order": _log_prob_gap([ours[row] for row in order], shuffled),
    }
    pearson = actor["training/rollout_actor_probs_pearson_corr"]
    figures = [_bounded(f"{name}/{what}", gap, "log-prob", "<=", LOG_PROB_GAP, judged) for what, gap in gaps.items()]
    figures.append(_bounded(f"{name}/pearson_correlation", pearson, "", ">=", PEARSON, judged))
    pairs = {"alone": (ours[:1], alone), "in_another_order": ([ours[row] for row in order], shuffled)}
    figures += [
        _bounded(f"{name}/latent_gap_{what}", latent_gap(*map(diffusion_samples, pair)), "", "<=", LATENT_GAP, judged)
        for what, pair in pairs.items()
        if isinstance(ours[0], Trajectory)
    ]
    return [*figures, *_samples(name, ours, theirs, judged), *_sizes(name, ours)]


def _samples(
    name: str, ours: Sequence[AnyTrajectory], theirs: Sequence[AnyTrajectory], judged: bool
) -> list[Measurement]:
    """Media and latents of diffusion; share of equal responses, of tokens."""
    if not isinstance(ours[0], Trajectory):
        same = sum(_ids(one) == _ids(two) for one, two in zip(ours, theirs, strict=True)) / len(ours)
        return [Measurement(f"{name}/share_of_equal_responses", same)]
    mine, other = diffusion_samples(ours), diffusion_samples(theirs)
    rounded, exact = media_gaps(mine, other)
    figures = [_bounded(f"{name}/latent_gap_to_native", latent_gap(mine, other), "", "<=", LATENT_GAP, judged)]
    if gaps := rounded + exact:
        mean = max(gap.mean().item() for gap in gaps)
        figures.append(_bounded(f"{name}/media_gap_to_native", mean, "", "<=", MEDIA_GAP, judged))
    for what, gaps, bound in (("rounded", rounded, EIGHT_BIT_STEP + MEDIA_GAP), ("float", exact, MEDIA_GAP)):
        if gaps:
            largest = max(gap.max().item() for gap in gaps)
            figures.append(_bounded(f"{name}/largest_gap_of_{what}_media", largest, "", "<=", bound, judged))
    return figures


def media_gaps(
    ours: Sequence[Trajectory], theirs: Sequence[Trajectory]
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Absolute differences in units of the range of 8-bit media, and of the other media as they are.

    Infinite where one side lacks an artifact or has one of another shape.
    """
    rounded: list[torch.Tensor] = []
    exact: list[torch.Tensor] = []
    for mine, other in zip(ours, theirs, strict=True):
        for key in mine.artifacts.keys() | other.artifacts.keys():
            left, right = _data(mine, key), _data(other, key)
            if left is None or right is None or left.shape != right.shape:
                exact.append(torch.tensor(float("inf")))
            elif left.dtype is torch.uint8:
                rounded.append((left.float() - right.float()).abs() / 255.0)
            else:
                exact.append((left.float() - right.float()).abs())
    return rounded, exact


def latent_gap(ours: Sequence[Trajectory], theirs: Sequence[Trajectory]) -> float:
    """Largest absolute difference of the clean latents."""
    return max(
        (mine.final_latents - other.final_latents).abs().max().item() for mine, other in zip(ours, theirs, strict=True)
    )


def _data(trajectory: Trajectory, key: str) -> torch.Tensor | None:
    artifact = trajectory.artifacts.get(key)
    return artifact.data if artifact is not None and isinstance(artifact.data, torch.Tensor) else None


def _sizes(name: str, ours: Sequence[AnyTrajectory]) -> list[Measurement]:
    return [
        Measurement(f"{name}/samples", len(ours)),
        Measurement(f"{name}/batch_size", max(trajectory.batch_size for trajectory in ours)),
    ]


def _log_prob_gap(ours: Sequence[AnyTrajectory], theirs: Sequence[AnyTrajectory]) -> float:
    """Largest difference; infinite where two responses differ in length, so that they cannot be compared."""
    left, right = stack_log_probs(ours), stack_log_probs(theirs)
    if left.shape != right.shape or not torch.equal(left.isnan(), right.isnan()):
        return float("inf")
    return (left - right).nan_to_num(0.0).abs().max().item()


def _ids(trajectory: AnyTrajectory) -> list[int]:
    found: list[int] = trajectory.response_ids.tolist()  # type: ignore[union-attr]
    return found


def _bounded(name: str, value: float, unit: str, relation: str, bound: float, judged: bool) -> Measurement:
    if not judged:
        return Measurement(name, value, unit)
    return Measurement(name, value, unit, relation, bound)  # type: ignore[arg-type]


ENGINE_CHECKS: tuple[Check, ...] = (
    Check(
        "consistency.engines",
        "consistency",
        "Every installed rollout engine that serves the recipe's model draws what the native engine draws, with the "
        "actor's log-probs, and gives a request the same sample whatever it is batched with.",
        "full",
        _engines,
        "compare the attention kernels and dtypes of both sides, or set rollout.engine=native; see docs/engines.md",
    ),
)
