"""How the roles of a run are built, in whatever process a launcher puts them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

import torch

from omni_portable.config.convert import build
from omni_portable.config.schema import RunConfig
from omni_portable.contracts import registry
from omni_portable.contracts.rollout import RolloutEngine
from omni_portable.contracts.teacher import POOL, TeacherFactory, Teaching
from omni_portable.contracts.training import TrainEngine
from omni_portable.models.setup import EngineSetup
from omni_portable.reward.compose import RewardComposer
from omni_portable.trainer.preflight import prepare_algorithm, prepare_model
from omni_portable.trainer.teaching import InThread


def build_actor(config: Mapping[str, Any], setup: EngineSetup | None = None) -> TrainEngine:
    """The recipe's train engine.

    Args:
        config: a `RunConfig` as plain data.
        setup: of this process; None prepares device and model here.
    """
    setup = setup or _setup(config)
    return cast(TrainEngine, registry.load("train_engine", setup.config.actor.engine)(setup))


def build_rollout(config: Mapping[str, Any], setup: EngineSetup | None = None) -> RolloutEngine:
    """The recipe's rollout engine; arguments as of :func:`build_actor`."""
    setup = setup or _setup(config)
    return cast(RolloutEngine, registry.load("rollout_engine", setup.config.rollout.engine)(setup))


def build_reward(config: Mapping[str, Any], composer: RewardComposer | None = None) -> RewardComposer:
    """The recipe's scorers; `composer` are those that this process has already."""
    return composer or RewardComposer.from_config(_typed(config).reward)


def build_teacher(config: Mapping[str, Any], teacher: str, setup: EngineSetup | None = None) -> Teaching:
    """A teacher of the recipe outside its train engine, by its name; arguments as of :func:`build_actor`."""
    setup = setup or _setup(config)
    engine = registry.spec("train_engine", setup.config.actor.engine)
    make: TeacherFactory = replace(engine, target=str(engine.capabilities[POOL])).load()
    return InThread(make(setup, teacher, prepare_algorithm(setup.config)))


def _typed(config: Mapping[str, Any]) -> RunConfig:
    typed = build(RunConfig, config)
    if typed.device.threads:
        torch.set_num_threads(typed.device.threads)
    return typed


def _setup(config: Mapping[str, Any]) -> EngineSetup:
    """As a run prepares its own process."""
    typed = _typed(config)
    prepared = prepare_model(typed)
    if typed.device.deterministic:
        prepared.device.determinism.enable(typed.trainer.seed)
    return EngineSetup(typed, prepared.device, prepared.load, prepare_algorithm(typed).requires)
