"""Denoising of a golden case, from its start or step by step from recorded latents, with everything kept.

Every step is `models.policy.transition`, the function that rollout engines draw with and actors score with.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from omni_portable.conformance.evidence.settings import GoldenCase, GoldenSettings, case_requests
from omni_portable.contracts.model import DiffusionAdapter
from omni_portable.contracts.rollout import Conditioning, Extent, RolloutRequest, Schedule
from omni_portable.models.policy import Transition, transition
from omni_portable.samplers.noise import INITIAL, unit_noise

Named = dict[str, torch.Tensor]
"""'conditioning.NAME' / 'negative.NAME' (B, ...) model inputs, 'latents' (B, T + 1, ...), 'velocity' (B, T, ...),
'next_latents' (B, T, ...), 'std' (B, T), 'log_probs' (B, W), 'artifact.NAME' (B, ...); on the CPU."""


@torch.no_grad()
def run_free(
    adapter: DiffusionAdapter, settings: GoldenSettings, case: GoldenCase, device: torch.device, rows: int = 0
) -> Named:
    """Encode, denoise from noise to clean latents, decode.

    Args:
        rows: requests per forward; 0 takes the whole case.
    """
    return _in_packs(adapter, settings, case, device, rows, None)


@torch.no_grad()
def run_forced(
    adapter: DiffusionAdapter,
    settings: GoldenSettings,
    case: GoldenCase,
    device: torch.device,
    recorded: Mapping[str, torch.Tensor],
    rows: int = 0,
) -> Named:
    """Take every step from the recorded latents and conditioning; decode the recorded clean latents.

    'latents' are then the recorded ones and 'log_probs' score the recorded next latents, as an actor does.
    """
    return _in_packs(adapter, settings, case, device, rows, recorded)


def _in_packs(
    adapter: DiffusionAdapter,
    settings: GoldenSettings,
    case: GoldenCase,
    device: torch.device,
    rows: int,
    recorded: Mapping[str, torch.Tensor] | None,
) -> Named:
    schedule = adapter.schedule(settings.num_steps, Extent(settings.height, settings.width))
    requests = case_requests(settings, case, schedule)
    size = rows or len(requests)
    parts = []
    for first in range(0, len(requests), size):
        chosen = slice(first, first + size)
        own = None if recorded is None else {name: tensor[chosen] for name, tensor in recorded.items()}
        parts.append(_pack(adapter, requests[chosen], schedule, device, own))
    return {name: torch.cat([part[name] for part in parts]).to("cpu") for name in parts[0]}


def _pack(
    adapter: DiffusionAdapter,
    requests: Sequence[RolloutRequest],
    schedule: Schedule,
    device: torch.device,
    recorded: Mapping[str, torch.Tensor] | None,
) -> Named:
    inputs = _encode(adapter, requests) if recorded is None else _inputs(recorded)
    shape = adapter.latent_shape(requests[0].extent)
    states = [adapter.initial_latents(requests, unit_noise(requests, INITIAL, shape).to(device))]
    outcomes, log_probs = [], []
    for step in range(schedule.num_steps):
        start = states[-1] if recorded is None else recorded["latents"][:, step].to(device)
        outcome = _step(adapter, requests, schedule, step, start, inputs)
        if step in requests[0].plan.stochastic_steps:
            taken = None if recorded is None else recorded["latents"][:, step + 1].to(device)
            scored = outcome if taken is None else _step(adapter, requests, schedule, step, start, inputs, taken)
            log_probs.append(scored.log_prob)
        outcomes.append(outcome)
        states.append(outcome.next_latents)
    latents = torch.stack(states, dim=1) if recorded is None else recorded["latents"]
    return {
        **inputs,
        "latents": latents,
        "next_latents": torch.stack(states[1:], dim=1),
        "velocity": torch.stack([outcome.velocity for outcome in outcomes], dim=1),
        "std": torch.stack([outcome.std for outcome in outcomes], dim=1),
        "log_probs": torch.stack(log_probs, dim=1),
        **_decode(adapter, latents[:, -1].to(device), requests[0].extent),
    }


def _step(
    adapter: DiffusionAdapter,
    requests: Sequence[RolloutRequest],
    schedule: Schedule,
    step: int,
    latents: torch.Tensor,
    inputs: Mapping[str, torch.Tensor],
    next_latents: torch.Tensor | None = None,
) -> Transition:
    plan, rows, device = requests[0].plan, len(requests), latents.device
    stochastic = step in plan.stochastic_steps
    drawn = stochastic and next_latents is None
    return transition(
        adapter,
        latents=latents,
        step_index=torch.full((rows,), step, dtype=torch.int64),
        schedule=schedule,
        kind=plan.kind,
        noise_level=plan.noise_level,
        conditioning=_part(inputs, "conditioning.", device),
        negative=_part(inputs, "negative.", device) or None,
        guidance_scale=requests[0].guidance_scale,
        stochastic=torch.full((rows,), stochastic),
        noise=unit_noise(requests, step, latents.shape[1:]).to(device) if drawn else None,
        next_latents=next_latents,
    )


def _encode(adapter: DiffusionAdapter, requests: Sequence[RolloutRequest]) -> Named:
    """Prompts one by one, as rollout engines encode them."""
    positive = adapter.collate([adapter.encode([request.prompt], None, request.extent)[0] for request in requests])
    named = {f"conditioning.{name}": tensor for name, tensor in positive.items()}
    if requests[0].guidance_scale != 1.0:
        negative = adapter.collate([adapter.encode([r.negative_prompt], None, r.extent)[0] for r in requests])
        named |= {f"negative.{name}": tensor for name, tensor in negative.items()}
    return named


def _inputs(recorded: Mapping[str, torch.Tensor]) -> Named:
    return {name: tensor for name, tensor in recorded.items() if name.startswith(("conditioning.", "negative."))}


def _part(inputs: Mapping[str, torch.Tensor], prefix: str, device: torch.device) -> Conditioning:
    return {name.removeprefix(prefix): inputs[name].to(device) for name in inputs if name.startswith(prefix)}


def _decode(adapter: DiffusionAdapter, latents: torch.Tensor, extent: Extent) -> Named:
    """Artifacts that are tensors, stacked over the rows."""
    decoded = adapter.decode(latents, extent)
    return {
        f"artifact.{name}": torch.stack([sample[name].data for sample in decoded])  # type: ignore[misc]
        for name, artifact in decoded[0].items()
        if isinstance(artifact.data, torch.Tensor)
    }
