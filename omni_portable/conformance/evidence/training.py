"""The training step of a golden recording: its batch, its scalars, and their distances on another device."""

from __future__ import annotations

import torch

from omni_portable.conformance.evidence.errors import absolute_errors, relative_errors, worst
from omni_portable.conformance.evidence.figures import Figures
from omni_portable.conformance.evidence.gradient import (
    GradientResult,
    group_norms,
    grouped,
    sampled,
    training_gradient,
)
from omni_portable.conformance.evidence.pair import diffusion_algorithm
from omni_portable.conformance.evidence.recording import Recording
from omni_portable.conformance.evidence.replay import Named
from omni_portable.conformance.evidence.settings import GoldenSettings, case_requests, golden_setup
from omni_portable.contracts.algorithm import TrainBatch
from omni_portable.contracts.rollout import Conditioning, Extent, Schedule, Trajectory
from omni_portable.models.policy import join_conditioning
from omni_portable.models.setup import EngineSetup, load_adapter

GRADIENT, NORM = "gradient/", "group_norm/"
"""Prefixes of recorded tensors and scalars."""


def golden_step(setup: EngineSetup, settings: GoldenSettings, recorded: Named) -> GradientResult:
    """One step of the train engine over the recorded trajectories of the first case."""
    own = golden_setup(setup, settings)
    schedule = load_adapter(own, ()).schedule(settings.num_steps, Extent(settings.height, settings.width))
    return training_gradient(own, golden_batch(settings, recorded, schedule), diffusion_algorithm(own.config))


def golden_batch(settings: GoldenSettings, recorded: Named, schedule: Schedule) -> TrainBatch:
    """Recorded trajectories as a train batch; ratios are exp(ratio_offsets) where log-probs are the recorded ones."""
    case = settings.cases[0]
    trajectories = []
    for row, request in enumerate(case_requests(settings, case, schedule)):
        steps = torch.tensor(case.stochastic_steps, dtype=torch.int64)
        latents = recorded["latents"][row]
        trajectories.append(
            Trajectory(
                request=request,
                schedule_fingerprint=schedule.fingerprint,
                policy_version=0,
                step_indices=steps,
                latents=latents[steps],
                next_latents=latents[steps + 1],
                log_probs=recorded["log_probs"][row],
                final_latents=latents[-1],
                conditioning=join_conditioning(
                    _part(recorded, "conditioning.", row), _part(recorded, "negative.", row) or None
                ),
                artifacts={},
                batch_size=len(case.prompts),
                batch_row=row,
                engine="recording",
            )
        )
    offsets = torch.tensor(settings.ratio_offsets, dtype=torch.float32)
    advantages = torch.tensor(settings.advantages, dtype=torch.float32)
    return TrainBatch(trajectories, advantages, old_log_probs=recorded["log_probs"] - offsets[:, None])


def step_scalars(result: GradientResult) -> dict[str, float]:
    """What a recording keeps of the step as numbers."""
    norms = {f"{NORM}{group}": norm for group, norm in group_norms(result.gradients).items()}
    return {"loss": result.metrics["actor/loss"], "grad_norm": result.metrics["actor/grad_norm"], **norms}


def step_tensors(result: GradientResult) -> dict[str, torch.Tensor]:
    """What a recording keeps of the step as tensors: sampled gradients."""
    return {f"{GRADIENT}{name}": sampled(gradient) for name, gradient in result.gradients.items()}


def training_figures(setup: EngineSetup, recording: Recording) -> Figures:
    """Loss and log-probs (absolute), norms and sampled gradients (relative, worst parameter group)."""
    recorded = recording.case(recording.settings.cases[0].name)
    result = golden_step(setup, recording.settings, recorded)
    ours, theirs = step_scalars(result), recording.scalars
    groups = sorted(name for name in theirs if name.startswith(NORM))
    gradients = grouped(recording.case(GRADIENT.rstrip("/")))
    got = grouped({name: sampled(gradient) for name, gradient in result.gradients.items()})
    directions = {group: relative_errors(got[group], expected, 0).item() for group, expected in gradients.items()}
    values = {
        "loss_error": abs(ours["loss"] - theirs["loss"]),
        "train_log_prob_error": worst(absolute_errors(result.log_probs, recorded["log_probs"])),
        "grad_norm_error": abs(ours["grad_norm"] / theirs["grad_norm"] - 1.0),
        "group_norm_error": worst(_relative(ours[name], theirs[name]) for name in groups),
        "gradient_error": worst(directions.values()),
    }
    return Figures(values, {"sampled gradient by parameter group": list(directions.values())})


def _relative(actual: float, expected: float) -> float:
    return relative_errors(torch.tensor([actual]), torch.tensor([expected]), 0).item()


def _part(recorded: Named, prefix: str, row: int) -> Conditioning:
    return {name.removeprefix(prefix): recorded[name][row] for name in recorded if name.startswith(prefix)}
