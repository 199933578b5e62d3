"""What a run asks its rollout engine for in each kind of round, for either kind of model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol, cast

from omni_portable.config.drawing import validation_rollout
from omni_portable.config.schema import RunConfig
from omni_portable.contracts.algorithm import Algorithm
from omni_portable.contracts.model import DiffusionAdapter
from omni_portable.contracts.rollout import RolloutRequest, SamplingPlan, Schedule
from omni_portable.contracts.tokens import AnyAlgorithm, AnyRequest, TokenRequest
from omni_portable.data.prompts import PromptRow
from omni_portable.models.extents import extent_of
from omni_portable.trainer.requests import make_requests, make_token_requests, round_seed

PROBE, VALIDATION = "probe", "validation"


class Drawing(Protocol):
    """Requests of a round; equal arguments give equal requests."""

    def training(self, rows: Sequence[PromptRow], step: int, round_name: str) -> Sequence[AnyRequest]:
        """rollout.n samples per prompt, with what the algorithm wants recorded."""
        ...

    def validation(self, rows: Sequence[PromptRow]) -> Sequence[AnyRequest]:
        """trainer.validation_samples per prompt; always the same."""
        ...

    def probe(self, row: PromptRow) -> AnyRequest:
        """One request to be drawn, always the same, whose record the actor can score."""
        ...


@dataclass(frozen=True)
class Schedules:
    """Of training and of validation, which may draw another size in another number of steps."""

    training: Schedule
    validation: Schedule


def schedules(config: RunConfig, adapter: DiffusionAdapter) -> Schedules:
    """The family's schedules for the sizes that the run draws."""
    training, validation = (
        adapter.schedule(rollout.num_steps, extent_of(rollout))
        for rollout in (config.rollout, validation_rollout(config))
    )
    return Schedules(training, validation)


def drawing(config: RunConfig, algorithm: AnyAlgorithm, found: Schedules | None) -> Drawing:
    """The requests of a run; responses of tokens have no schedule."""
    if found is None:
        return TokenDrawing(config)
    diffusion = cast(Algorithm, algorithm)
    used = Schedules(diffusion.schedule(found.training), diffusion.schedule(found.validation))
    return DiffusionDrawing(config, diffusion, used)


@dataclass(frozen=True)
class DiffusionDrawing:
    """Samples drawn as the algorithm plans it."""

    config: RunConfig
    algorithm: Algorithm
    schedules: Schedules

    def training(self, rows: Sequence[PromptRow], step: int, round_name: str) -> list[RolloutRequest]:
        plan = self.algorithm.sampling_plan(self.schedules.training, self._seed(round_name), step)
        return self._make(rows, round_name, self.config.rollout.n, plan)

    def validation(self, rows: Sequence[PromptRow]) -> list[RolloutRequest]:
        schedule = self.schedules.validation
        return make_requests(
            rows,
            validation_rollout(self.config),
            samples=self.config.trainer.validation_samples,
            schedule=schedule,
            plan=self.algorithm.validation_plan(schedule),
            seed=self._seed(VALIDATION),
            round_name=VALIDATION,
        )

    def probe(self, row: PromptRow) -> RolloutRequest:
        plan = self.algorithm.sampling_plan(self.schedules.training, self._seed(PROBE))
        return self._make([replace(row, targets=())], PROBE, 1, plan)[0]

    def _make(self, rows: Sequence[PromptRow], name: str, samples: int, plan: SamplingPlan) -> list[RolloutRequest]:
        return make_requests(
            rows,
            self.config.rollout,
            samples=samples,
            schedule=self.schedules.training,
            plan=plan,
            seed=self._seed(name),
            round_name=name,
        )

    def _seed(self, name: str) -> int:
        return round_seed(self.config.trainer.seed, name)


@dataclass(frozen=True)
class TokenDrawing:
    """Responses; validation has a temperature of its own."""

    config: RunConfig

    def training(self, rows: Sequence[PromptRow], step: int, round_name: str) -> list[TokenRequest]:
        return self._make(rows, round_name, self.config.rollout.n, self.config.rollout.temperature)

    def validation(self, rows: Sequence[PromptRow]) -> list[TokenRequest]:
        samples = self.config.trainer.validation_samples
        return self._make(rows, VALIDATION, samples, self.config.rollout.validation_temperature)

    def probe(self, row: PromptRow) -> TokenRequest:
        return self._make([replace(row, targets=())], PROBE, 1, self.config.rollout.temperature)[0]

    def _make(self, rows: Sequence[PromptRow], name: str, samples: int, temperature: float) -> list[TokenRequest]:
        seed = round_seed(self.config.trainer.seed, name)
        return make_token_requests(
            rows, self.config.rollout, samples=samples, temperature=temperature, seed=seed, round_name=name
        )
