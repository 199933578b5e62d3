"""Distances of a replay from its recording, by name: the recorder makes bounds of them, the checks compare."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from omni_portable.conformance.evidence.errors import absolute_errors, relative_errors, worst
from omni_portable.conformance.evidence.pair import diffusion_samples
from omni_portable.conformance.evidence.recording import Recording
from omni_portable.conformance.evidence.replay import Named, run_forced, run_free
from omni_portable.conformance.evidence.settings import case_requests, golden_setup
from omni_portable.contracts import registry
from omni_portable.contracts.rollout import Extent, RolloutEngine, Trajectory
from omni_portable.models.setup import EngineSetup, load_adapter

COMPONENTS = ("transformer", "text_encoder", "vae")


@dataclass(frozen=True)
class Figures:
    """Named distances, and curves of them over the denoising steps."""

    values: Mapping[str, float]
    series: Mapping[str, list[float]] = field(default_factory=dict)


def trajectory_figures(setup: EngineSetup, recording: Recording, rows: int = 0) -> Figures:
    """Step by step from recorded latents, and freely from the prompts; worst over cases, rows and steps.

    '*_error' of vectors is relative (L2), of standard deviations relative, of log-probs absolute. 'free_*' run on their
    own results.

    Args:
        rows: requests per forward; 0 takes each case whole.
    """
    settings, device = recording.settings, setup.load.torch_device
    adapter = load_adapter(golden_setup(setup, settings), COMPONENTS)
    velocity, latents, parts = [], [], []
    for case in settings.cases:
        recorded = recording.case(case.name)
        forced = run_forced(adapter, settings, case, device, recorded, rows)
        free = run_free(adapter, settings, case, device, rows)
        velocity.append(relative_errors(forced["velocity"], recorded["velocity"], 2).amax(dim=0))
        latents.append(relative_errors(free["latents"], recorded["latents"], 2).amax(dim=0))
        parts.append(_trajectory_errors(recorded, forced, free))
    by_step = torch.stack(velocity).amax(dim=0), torch.stack(latents).amax(dim=0)
    values = {name: worst(part[name] for part in parts) for name in parts[0]}
    values |= {"velocity_error": worst(by_step[0]), "free_latents_error": worst(by_step[1])}
    series = {"velocity from recorded latents": by_step[0].tolist(), "latents run freely": by_step[1].tolist()}
    return Figures(values, series)


def _trajectory_errors(recorded: Named, forced: Named, free: Named) -> dict[str, float]:
    texts = [name for name in recorded if name.startswith(("conditioning.", "negative."))]
    return {
        "text_error": worst(worst(relative_errors(free[name], recorded[name], 1)) for name in texts),
        "std_error": worst(relative_errors(forced["std"][..., None], recorded["std"][..., None], 2)),
        "next_latents_error": worst(relative_errors(forced["next_latents"], recorded["latents"][:, 1:], 2)),
        "log_prob_error": worst(absolute_errors(forced["log_probs"], recorded["log_probs"])),
        "free_log_prob_error": worst(absolute_errors(free["log_probs"], recorded["log_probs"])),
    }


def decode_figures(setup: EngineSetup, recording: Recording) -> Figures:
    """Artifacts from the recorded clean latents, and from the rollout engine's own run of the same requests.

    Pixels differ in 8-bit levels. `engine_*`: everything between the prompt and the pixels, through the engine's own
    batching, prompt cache and sampler.
    """
    settings, device = recording.settings, setup.load.torch_device
    own = golden_setup(setup, settings)
    adapter = load_adapter(own, COMPONENTS)
    engine: RolloutEngine = registry.load("rollout_engine", own.config.rollout.engine)(own)
    schedule = adapter.schedule(settings.num_steps, Extent(settings.height, settings.width))
    parts = []
    for case in settings.cases:
        recorded = recording.case(case.name)
        decoded = run_forced(adapter, settings, case, device, recorded)
        drawn = diffusion_samples(asyncio.run(engine.generate(case_requests(settings, case, schedule))).trajectories)
        parts.append(_artifact_errors(recorded, decoded) | _engine_errors(recorded, drawn))
    return Figures({name: worst(part[name] for part in parts) for name in parts[0]})


def _artifact_errors(recorded: Named, decoded: Named) -> dict[str, float]:
    gaps = [absolute_errors(decoded[name], recorded[name]) for name in recorded if name.startswith("artifact.")]
    return {"artifact_error_max": worst(worst(gap) for gap in gaps), "artifact_error_mean": _mean(gaps)}


def _engine_errors(recorded: Named, drawn: list[Trajectory]) -> dict[str, float]:
    final = torch.stack([trajectory.final_latents for trajectory in drawn])
    log_probs = torch.stack([trajectory.log_probs for trajectory in drawn])
    gaps = []
    for key in (name for name in recorded if name.startswith("artifact.")):
        artifacts = [trajectory.artifacts[key.removeprefix("artifact.")].data for trajectory in drawn]
        gaps.append(absolute_errors(torch.stack([torch.as_tensor(data) for data in artifacts]), recorded[key]))
    return {
        "engine_latents_error": worst(relative_errors(final, recorded["latents"][:, -1], 1)),
        "engine_log_prob_error": worst(absolute_errors(log_probs, recorded["log_probs"])),
        "engine_artifact_error_mean": _mean(gaps),
    }


def _mean(gaps: list[torch.Tensor]) -> float:
    return worst(gap.mean().item() for gap in gaps)
