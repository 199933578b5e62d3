"""What a golden recording draws and trains on: everything that decides its numbers, as plain data."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from omni_portable.config.loader import plugin_options, resolve_model_path
from omni_portable.config.schema import ActorConfig, ModelConfig, RolloutConfig
from omni_portable.contracts.rollout import RolloutRequest, SamplingPlan, Schedule, StepKind
from omni_portable.models.setup import EngineSetup


@dataclass(frozen=True)
class GoldenCase:
    """One pack of requests, a row per prompt.

    Args:
        stochastic_steps: steps of kernel `step_kind` with `noise_level`; the others are ODE steps.
        guidance_scale: 1 draws without guidance; otherwise away from `negative_prompt`.
        seed: of the noise.
    """

    name: str
    prompts: Sequence[str]
    step_kind: StepKind
    noise_level: float
    stochastic_steps: Sequence[int]
    guidance_scale: float = 1.0
    negative_prompt: str = ""
    seed: int = 0


@dataclass(frozen=True)
class GoldenSettings:
    """Settings of a recording.

    Args:
        family / path / options: the `model` section; all weights are trained.
        num_steps / height / width: of every request.
        cases: the first one is also trained on.
        algorithm: the `algorithm` section of the training step.
        advantages: one per prompt of the first case.
        ratio_offsets: one per prompt; the old log-probs are the recorded ones minus these, so that ratios are not 1
            and some are clipped.
    """

    family: str
    path: str
    options: Mapping[str, Any]
    num_steps: int
    height: int
    width: int
    cases: Sequence[GoldenCase]
    algorithm: Mapping[str, Any]
    advantages: Sequence[float]
    ratio_offsets: Sequence[float] = field(default_factory=tuple)

    def as_data(self) -> dict[str, Any]:
        """For JSON; :func:`settings_from` reads it back."""
        return dataclasses.asdict(self)


def settings_from(data: Mapping[str, Any]) -> GoldenSettings:
    """Inverse of :meth:`GoldenSettings.as_data`; TypeError where keys are unknown or missing."""
    return GoldenSettings(**{**data, "cases": tuple(GoldenCase(**case) for case in data["cases"])})


def case_requests(settings: GoldenSettings, case: GoldenCase, schedule: Schedule) -> list[RolloutRequest]:
    """The case as any rollout engine takes it."""
    plan = SamplingPlan(case.step_kind, case.noise_level, tuple(case.stochastic_steps))
    return [
        RolloutRequest(
            request_id=f"{case.name}/{index}",
            group_id=case.name,
            prompt_id=f"{case.name}/{index}",
            sample_index=index,
            seed=case.seed,
            prompt=prompt,
            height=settings.height,
            width=settings.width,
            schedule=schedule,
            plan=plan,
            negative_prompt=case.negative_prompt,
            guidance_scale=case.guidance_scale,
        )
        for index, prompt in enumerate(case.prompts)
    ]


def golden_setup(setup: EngineSetup, settings: GoldenSettings) -> EngineSetup:
    """The engines, dtype and kernels of `setup` on the recording's model, requests and training step."""
    config = setup.config
    model = ModelConfig(settings.family, settings.path, dict(settings.options))
    rollout = RolloutConfig(
        engine=config.rollout.engine,
        options=config.rollout.options,
        max_num_seqs=max(len(case.prompts) for case in settings.cases),
        num_steps=settings.num_steps,
        height=settings.height,
        width=settings.width,
    )
    actor = ActorConfig(engine=config.actor.engine, options=config.actor.options)
    load = replace(
        setup.load,
        path=resolve_model_path(settings.path),
        options=plugin_options("model", settings.family, settings.options),
    )
    changed = replace(config, model=model, rollout=rollout, actor=actor, algorithm=dict(settings.algorithm))
    return replace(setup, config=changed, load=load)
