"""Samples that a policy drew itself, every step of them kept, for algorithms that train those steps."""

from __future__ import annotations

from dataclasses import replace

import torch

from omni_portable.algorithms.dmd2.algorithm import DMD2
from omni_portable.contracts.rollout import SamplingPlan, Trajectory
from omni_portable.models.policy import join_conditioning, transition
from tests.backends.training.toy import SCHEDULE, SHAPE, make_setup, make_trajectories
from tests.support.toy_adapter import ToyAdapter


def rollouts(
    algorithm: DMD2, count: int, seed: int = 0, guided: bool = False, adapter: ToyAdapter | None = None
) -> list[Trajectory]:
    """Samples drawn by the toy, or another adapter of its kind, as the algorithm plans, with every step's input."""
    plan, adapter = algorithm.sampling_plan(SCHEDULE, 0, 1), adapter or ToyAdapter(make_setup().load)
    found = make_trajectories(count, plan=SamplingPlan("cps", 1.0, (0, 1, 2)), seed=seed, adapter=adapter)
    generator = torch.Generator().manual_seed(seed + 1)
    for trajectory in found:
        latents, after = [trajectory.latents[0]], []
        for step in range(SCHEDULE.num_steps):
            drawn = step in plan.stochastic_steps
            with torch.no_grad():
                outcome = transition(
                    adapter,
                    latents=latents[-1][None],
                    step_index=torch.tensor([step]),
                    schedule=SCHEDULE,
                    kind=plan.kind if drawn else "ode",
                    noise_level=plan.noise_level,
                    conditioning=adapter.collate([trajectory.conditioning]),
                    noise=torch.randn(1, *SHAPE, generator=generator) if drawn else None,
                )
            after.append(outcome.next_latents[0])
            latents.append(after[-1])
        trajectory.request = replace(trajectory.request, plan=plan)
        trajectory.step_indices = torch.arange(SCHEDULE.num_steps)
        trajectory.latents, trajectory.next_latents = torch.stack(latents[:-1]), torch.stack(after)
        trajectory.log_probs = torch.full((SCHEDULE.num_steps,), torch.nan)
        trajectory.final_latents = after[-1]
        if guided:
            negative = {name: torch.zeros_like(t) for name, t in trajectory.conditioning.items()}
            trajectory.conditioning = join_conditioning(trajectory.conditioning, negative)
    return found
