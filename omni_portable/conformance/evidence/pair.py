"""An actor and a rollout engine of the recipe, built as a run builds them, for checks that compare the two."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch

from omni_portable.config.schema import RunConfig
from omni_portable.conformance.check import NotRun
from omni_portable.conformance.context import Context
from omni_portable.contracts.algorithm import Algorithm, TrainBatch
from omni_portable.contracts.rollout import RolloutEngine, RolloutRequest, Schedule, Trajectory
from omni_portable.contracts.tokens import AnyTrajectory
from omni_portable.contracts.training import TrainEngine
from omni_portable.data.fields import input_media
from omni_portable.data.prompts import PromptRow, load_prompts
from omni_portable.models.extents import extent_of
from omni_portable.trainer.placing import make_launcher, run_roles
from omni_portable.trainer.preflight import prepare_algorithm
from omni_portable.trainer.requests import make_requests, round_seed

LEARNING_RATE = 1e-3
"""Of the one optimizer step that a check takes: large enough to show in any dtype, whatever the recipe trains with."""
LARGEST_BATCH = 32
"""Samples that a check draws unless it asks for fewer."""


@dataclass(frozen=True)
class Pair:
    """Two roles that hold the same initial weights.

    Args:
        requests: fixed samples of training prompts, no more than one forward of the rollout takes, so that actor and
            rollout compute in one batch shape.
        probe: one more request, for proofs of a weight sync.
        config: what the two were built from.
    """

    actor: TrainEngine
    engine: RolloutEngine
    algorithm: Algorithm
    requests: tuple[RolloutRequest, ...]
    probe: RolloutRequest
    config: RunConfig

    async def draw(self, requests: Sequence[RolloutRequest]) -> list[Trajectory]:
        """Trajectories in request order."""
        return diffusion_samples((await self.engine.generate(requests)).trajectories)

    def batch(self, trajectories: Sequence[Trajectory]) -> TrainBatch:
        """A batch whose advantages are +1 and -1 in turn: a real gradient, whatever the rewards would be."""
        signs = torch.tensor([1.0 if index % 2 == 0 else -1.0 for index in range(len(trajectories))])
        return TrainBatch(list(trajectories), signs)


def checked_config(config: RunConfig, lora_rank: int | None = None) -> RunConfig:
    """The recipe as checks run it: one micro-batch per pack, one visible optimizer step, a LoRA of another rank.

    Args:
        lora_rank: 0 trains all weights; None keeps the recipe's.
    """
    lora = config.model.lora if lora_rank is None else replace(config.model.lora, rank=lora_rank)
    actor = replace(config.actor, micro_batch_size=0, lr=LEARNING_RATE, warmup_steps=0)
    return replace(config, model=replace(config.model, lora=lora), actor=actor)


def diffusion_algorithm(config: RunConfig) -> Algorithm:
    """The recipe's algorithm.

    Raises:
        NotRun: it trains a token model, for which there is no such check.
    """
    algorithm = prepare_algorithm(config)
    if not isinstance(algorithm, Algorithm):
        raise NotRun(f"the recipe's algorithm '{algorithm.name}' trains a token model; this check is for diffusion")
    return algorithm


def diffusion_samples(trajectories: Sequence[AnyTrajectory]) -> list[Trajectory]:
    """The trajectories of a diffusion engine (`TypeError` for others)."""
    found = [trajectory for trajectory in trajectories if isinstance(trajectory, Trajectory)]
    if len(found) != len(trajectories):
        raise TypeError("a diffusion recipe's engine returned token trajectories")
    return found


@contextmanager
def opened_pair(context: Context, config: RunConfig, samples: int = LARGEST_BATCH) -> Iterator[Pair]:
    """Start both roles with the recipe's launcher; they are shut down when the context ends.

    Args:
        samples: number of requests, where one forward of the rollout takes as many.
    """
    setup = replace(context.setup, config=config)
    launcher = make_launcher(config)
    roles = {role.name: role for role in run_roles(setup) if role.replica == 0}
    try:
        launcher.reserve(list(roles.values()))
        actor: TrainEngine = launcher.start(roles["actor"])
        engine: RolloutEngine = launcher.start(roles["rollout"])
        rollout = config.rollout
        schedule = context.bare_adapter.schedule(rollout.num_steps, extent_of(rollout))
        requests = fixed_requests(context, schedule, min(rollout.max_num_seqs, samples), "conformance")
        probe = fixed_requests(context, schedule, 1, "probe")[0]
        yield Pair(actor, engine, diffusion_algorithm(config), requests, probe, config)
    finally:
        launcher.shutdown()


def training_rows(config: RunConfig) -> list[PromptRow]:
    """The recipe's training prompts, with their input media."""
    data = config.data
    return load_prompts(data.train, split="train", prompt_key=data.prompt_key, media=input_media(data))


def fixed_requests(context: Context, schedule: Schedule, count: int, round_name: str) -> tuple[RolloutRequest, ...]:
    """`count` samples of the first training prompts under the algorithm's plan (fewer where prompts are short).

    At least two prompts share them, where the recipe has two: rows of one batch should not be alike.
    """
    config, rollout = context.config, context.config.rollout
    rows = training_rows(config)
    samples = max(1, min(rollout.n, count // 2))
    seed = round_seed(context.seed, round_name)
    requests = make_requests(
        rows[: -(-count // samples)],
        rollout,
        samples=samples,
        schedule=schedule,
        plan=diffusion_algorithm(config).sampling_plan(schedule, seed),
        seed=seed,
        round_name=round_name,
    )
    return tuple(requests[:count])
