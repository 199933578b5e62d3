"""A rollout engine in processes of its own beside the native one and the actor, all with the same weights."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch

from omni_portable.config.schema import RunConfig
from omni_portable.conformance.check import NotRun
from omni_portable.conformance.context import Context
from omni_portable.conformance.evidence.pair import checked_config, fixed_requests, training_rows
from omni_portable.contracts import registry
from omni_portable.contracts.algorithm import TrainBatch
from omni_portable.contracts.errors import PluginError
from omni_portable.contracts.rollout import RolloutEngine
from omni_portable.contracts.tokens import AnyTrajectory
from omni_portable.contracts.training import TrainEngine
from omni_portable.models.extents import extent_of
from omni_portable.trainer.consistency import SyncProof
from omni_portable.trainer.modes.base import push_weights
from omni_portable.trainer.preflight import prepare_algorithm
from omni_portable.trainer.requests import make_token_requests, round_seed
from omni_portable.trainer.roles import build_actor, build_rollout

SAMPLES = 8

Role = TypeVar("Role")


@dataclass(frozen=True)
class Sides:
    """Three roles of one recipe.

    Args:
        engine: the one that is compared.
        native: the reference.
        requests: at most :data:`SAMPLES`, one pack.
        config: what they were built from.
    """

    actor: TrainEngine
    engine: RolloutEngine
    native: RolloutEngine
    requests: tuple[Any, ...]
    config: RunConfig

    async def share_new_weights(self) -> None:
        """One optimizer step on the native engine's samples, and its outcome into both engines, proved: what a LoRA
        adds is zero before."""
        drawn = await draw(self.native, self.requests)
        signs = torch.tensor([1.0 if index % 2 == 0 else -1.0 for index in range(len(drawn))])
        self.actor.train_step(TrainBatch(list(drawn), signs), prepare_algorithm(self.config))
        for engine in (self.native, self.engine):
            engine.pause()
            await push_weights(self.actor, engine, SyncProof(self.actor, engine, None), 1)

    def replayed(self, trajectories: Sequence[AnyTrajectory]) -> torch.Tensor:
        """(N, W) log-probs of the actor."""
        return self.actor.log_probs(TrainBatch(list(trajectories), torch.zeros(len(trajectories))))


async def draw(engine: RolloutEngine, requests: Sequence[Any]) -> list[AnyTrajectory]:
    """Trajectories in request order."""
    return list((await engine.generate(requests)).trajectories)


def engines_for(context: Context) -> tuple[str, ...]:
    """Engines with processes of their own that draw what the recipe trains.

    Raises:
        NotRun: there is none, or the recipe's samples are not drawn.
    """
    config = context.config
    if registry.spec("rollout_engine", config.rollout.engine).capabilities.get("given_samples", False):
        raise NotRun("the recipe takes its samples from a dataset")
    algorithm = registry.spec("algorithm", str(config.algorithm["name"]))
    if not algorithm.capabilities.get("needs_log_probs", False):
        raise NotRun(f"algorithm '{algorithm.name}' compares no log-probs of actor and rollout")
    family = config.model.family
    kinds = set(registry.spec("model", family).capabilities.get("kinds", ()))
    kinds &= set(algorithm.capabilities.get("kinds", kinds))
    found, refused = [], []
    for name in registry.names("rollout_engine"):
        offered = registry.spec("rollout_engine", name).capabilities
        if not offered.get("multi_process") or not kinds & set(offered["kinds"]):
            continue
        if family in offered.get("families", (family,)):
            found.append(name)
        elif family in (reasons := offered.get("refused_families", {})):
            refused.append(f"; {name}: {reasons[family]}")
    if not found:
        raise NotRun(f"no rollout engine with processes of its own serves model.family={family}" + "".join(refused))
    return tuple(found)


@contextmanager
def opened_sides(context: Context, name: str) -> Iterator[Sides]:
    """Start the actor, the native engine and the named one; all are shut down when the context ends.

    Raises:
        NotRun: the engine, or a version of it that is supported, is not installed.
    """
    config = _config(context.config, name)
    beside = replace(config, rollout=replace(config.rollout, engine="native", options={}))
    setup = replace(context.setup, config=config)
    with ExitStack() as stack:
        try:
            engine = _held(stack, build_rollout({}, setup))
        except PluginError as error:
            raise NotRun(f"{name}: {error.problem}") from error
        actor = _held(stack, build_actor({}, setup))
        native = _held(stack, build_rollout({}, replace(setup, config=beside)))
        yield Sides(actor, engine, native, _requests(context, config), config)


def _held(stack: ExitStack, role: Role) -> Role:
    """The role, closed with the stack where it has something to close."""
    close = getattr(role, "close", None)
    if callable(close):
        stack.callback(close)
    return role


def _config(config: RunConfig, name: str) -> RunConfig:
    """The recipe with another engine; the options of its own are kept."""
    options = config.rollout.options if config.rollout.engine == name else {}
    size = max(SAMPLES, config.rollout.max_num_seqs)
    return replace(
        checked_config(config),
        rollout=replace(config.rollout, engine=name, options=options, max_num_seqs=size),
    )


def _requests(context: Context, config: RunConfig) -> tuple[Any, ...]:
    kinds = registry.spec("rollout_engine", config.rollout.engine).capabilities["kinds"]
    if "diffusion" in kinds:
        schedule = context.bare_adapter.schedule(config.rollout.num_steps, extent_of(config.rollout))
        return fixed_requests(context, schedule, SAMPLES, "conformance")
    rows = training_rows(config)
    made = make_token_requests(
        rows[: SAMPLES // 2],
        config.rollout,
        samples=2,
        temperature=config.rollout.temperature,
        seed=round_seed(context.seed, "conformance"),
        round_name="conformance",
    )
    return tuple(made[:SAMPLES])
