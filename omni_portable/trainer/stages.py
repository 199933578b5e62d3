"""The stages of the loop: objects with one method each and no knowledge of each other."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

import torch

from omni_portable.contracts.algorithm import Selection, TrainBatch
from omni_portable.contracts.dataplane import ScoredGroup
from omni_portable.contracts.errors import DataError, RewardError
from omni_portable.contracts.reward import ComposedReward, RewardSample, Scoring
from omni_portable.contracts.tokens import AnyAlgorithm, AnyTrajectory, TokenAlgorithm, TokenTrajectory
from omni_portable.contracts.training import StepResult, TrainEngine

Item = TypeVar("Item")


def reward_samples(trajectories: Sequence[AnyTrajectory]) -> list[RewardSample]:
    return [
        RewardSample(
            sample_id=t.request.request_id,
            group_id=t.request.group_id,
            prompt=t.request.prompt,
            artifacts=t.artifacts,
            metadata=t.request.metadata,
        )
        for t in trajectories
    ]


class RewardStage:
    """Trajectories -> scores of every sample; groups with a failed sample are left out where that is declared.

    Args:
        workers: each scores one set of samples at a time; several sets wait for the first free one.
    """

    def __init__(self, *workers: Scoring) -> None:
        self._free: asyncio.Queue[Scoring] = asyncio.Queue()
        for worker in workers:
            self._free.put_nowait(worker)

    async def run(self, trajectories: Sequence[AnyTrajectory]) -> ComposedReward:
        worker = await self._free.get()
        try:
            return await worker.score_async(reward_samples(trajectories))
        finally:
            self._free.put_nowait(worker)


def without(reward: ComposedReward, trajectories: Sequence[AnyTrajectory], errors: Mapping[str, str]) -> ComposedReward:
    """The reward with further failed samples (request id -> why), whose groups will be left out."""
    if not errors:
        return reward
    failed = {*reward.failed, *errors}
    names = [t.request.request_id for t in trajectories if t.request.request_id in failed]
    return replace(reward, failed=names, errors={**errors, **reward.errors})


def form_groups(
    trajectories: Sequence[AnyTrajectory], reward: ComposedReward, first_submission: int
) -> tuple[list[ScoredGroup], int]:
    """Scored groups in order of submission, without those that hold a failed sample; and how many were left out."""
    members: dict[str, list[int]] = defaultdict(list)
    for index, trajectory in enumerate(trajectories):
        members[trajectory.request.group_id].append(index)
    failed, groups = set(reward.failed), []
    for offset, (group_id, rows) in enumerate(members.items()):
        if any(trajectories[i].request.request_id in failed for i in rows):
            continue
        groups.append(
            ScoredGroup(
                group_id=group_id,
                submission=first_submission + offset,
                trajectories=[trajectories[i] for i in rows],
                rewards=[reward.total[i] for i in rows],
                components={name: [values[i] for i in rows] for name, values in reward.components.items()},
                details=[dict(reward.details[i]) for i in rows],
            )
        )
    if not groups:
        first, why = next(iter(reward.errors.items()), ("", "unknown"))
        raise RewardError(
            "no group is left to train on: every group holds a sample whose reward or teacher failed; the first, "
            f"'{first}': {why}"
        )
    return groups, len(members) - len(groups)


def _rewards_and_ids(groups: Sequence[ScoredGroup]) -> tuple[torch.Tensor, list[str]]:
    rewards = torch.tensor([r for group in groups for r in group.rewards], dtype=torch.float32)
    return rewards, [group.group_id for group in groups for _ in group.trajectories]


def groups_with_signal(algorithm: AnyAlgorithm, groups: Sequence[ScoredGroup]) -> int:
    """How many groups the algorithm would train on."""
    rewards, ids = _rewards_and_ids(groups)
    return len({ids[index] for index in algorithm.select(rewards, ids).indices})


class AdvantageStage:
    """Groups -> one batch of the samples that the algorithm selects, with one advantage each.

    Args:
        max_groups: groups trained on at most, the first of those that were selected (0: all); dynamic sampling may
            have drawn more than a batch needs.
    """

    def __init__(self, algorithm: AnyAlgorithm, max_groups: int = 0) -> None:
        self._algorithm, self._max_groups = algorithm, max_groups

    def run(self, groups: Sequence[ScoredGroup], seed: int) -> TrainBatch | None:
        """
        Args:
            seed: of the round, for what is drawn in training.

        Returns:
            None where the algorithm samples dynamically and no group carries a signal.

        Raises:
            DataError: any other algorithm selects no sample.
        """
        trajectories = [t for group in groups for t in group.trajectories]
        rewards, ids = _rewards_and_ids(groups)
        advantages = self._algorithm.advantages(self._shaped(rewards, trajectories), ids)
        selection = self._algorithm.select(rewards, ids)
        chosen = self._first(selection, ids)
        if not chosen and isinstance(self._algorithm, TokenAlgorithm) and self._algorithm.dynamic_sampling:
            return None
        if not chosen:
            raise DataError(
                f"algorithm '{self._algorithm.name}' selects none of the {len(ids)} samples of this rollout",
                remedy="draw more samples per prompt (rollout.n), or look at the rewards",
            )
        return TrainBatch(
            trajectories=[trajectories[index] for index in chosen],
            advantages=advantages[chosen],
            noise_keys=selection.noise_keys,
            seed=seed,
            unit=selection.unit,
        )

    def _shaped(self, rewards: torch.Tensor, trajectories: Sequence[AnyTrajectory]) -> torch.Tensor:
        """Rewards with what an algorithm of tokens adds for their lengths."""
        responses = [t for t in trajectories if isinstance(t, TokenTrajectory)]
        if not isinstance(self._algorithm, TokenAlgorithm) or not responses:
            return rewards
        lengths = torch.tensor([t.length for t in responses])
        budgets = torch.tensor([t.request.max_new_tokens for t in responses])
        return self._algorithm.shape_rewards(rewards, lengths, budgets)

    def _first(self, selection: Selection, ids: Sequence[str]) -> list[int]:
        if not self._max_groups:
            return list(selection.indices)
        kept = set(_distinct(ids[index] for index in selection.indices)[: self._max_groups])
        return [index for index in selection.indices if ids[index] in kept]


def _distinct(names: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(names))


@dataclass
class UpdateOutcome:
    """Metrics averaged over the optimizer steps of one rollout, and the log-probs of the first, taken before any
    weight changed (with the trajectories they belong to)."""

    metrics: dict[str, float]
    optimizer_steps: int
    first_actor: torch.Tensor
    first_trajectories: Sequence[AnyTrajectory] = field(default_factory=list)


class UpdateStage:
    """A batch -> optimizer steps over its mini-batches, `epochs` times."""

    def __init__(self, engine: TrainEngine, algorithm: AnyAlgorithm, mini_batch_size: int, epochs: int) -> None:
        self._engine, self._algorithm = engine, algorithm
        self._mini_batch_size, self._epochs = mini_batch_size, epochs

    def run(self, batch: TrainBatch, on_progress: Callable[[int, int], None] | None = None) -> UpdateOutcome:
        parts = split_batch(batch, self._mini_batch_size)
        results: list[StepResult] = []
        for _ in range(self._epochs):
            for part in parts:
                results.append(self._engine.train_step(part, self._algorithm))
                if on_progress:
                    on_progress(len(results), len(parts) * self._epochs)
        totals: dict[str, float] = defaultdict(float)
        for result in results:
            for name, value in result.metrics.items():
                totals[name] += value / len(results)
        return UpdateOutcome(
            metrics=dict(totals),
            optimizer_steps=len(results),
            first_actor=results[0].log_probs,
            first_trajectories=parts[0].trajectories,
        )


def split_batch(batch: TrainBatch, size: int) -> list[TrainBatch]:
    """Contiguous mini-batches of `size` samples (0: one); the last may be smaller after groups were left out."""
    count = len(batch.trajectories)
    size = size or count
    return [take_samples(batch, slice(start, start + size)) for start in range(0, count, size)]


def take_samples(batch: TrainBatch, part: slice) -> TrainBatch:
    """The same batch with some of its samples."""

    def cut(tensor: torch.Tensor | None) -> torch.Tensor | None:
        return None if tensor is None else tensor[part]

    return replace(
        batch,
        trajectories=batch.trajectories[part],
        advantages=batch.advantages[part],
        weights=cut(batch.weights),
        old_log_probs=cut(batch.old_log_probs),
        importance_weights=cut(batch.importance_weights),
        noise_keys=batch.noise_keys[part],
    )
