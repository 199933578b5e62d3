"""How a batch is dealt to the data ranks.

Micro-batches are those of the single-process engine, dealt out in turn, so that their shapes, and with them the bits of
their log-probs, do not depend on the number of processes. All ranks must run the same number of forwards and backwards,
because each gathers parameters: where micro-batches do not go round, a rank repeats one of its round with factor 0.
Micro-batches that are not trained on (all weights 0) come first, in rounds of their own without a backward.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch

from omni_backends.training.fsdp2.layout import Layout
from omni_backends.training.micro import check_equal, cut, denoised, parts, sample_weights
from omni_backends.training.replay import replay_facts, stored_steps
from omni_backends.training.tokens import token_batches
from omni_portable.contracts.algorithm import TrainBatch
from omni_portable.contracts.errors import CapabilityError, ConsistencyError

ShareKind = Literal["train", "score", "repeat"]


@dataclass(frozen=True)
class Share:
    """One micro-batch for one data rank.

    Args:
        index: of the micro-batch in the batch.
        kind: 'train'; 'score': forward only; 'repeat': as another rank's, for the sake of its collectives, and counted
            nowhere.
        batch: its samples.
        backward: whether its round has a backward.
    """

    index: int
    kind: ShareKind
    batch: TrainBatch
    backward: bool

    @property
    def size(self) -> int:
        """Samples; all of them are one forward, whatever size a rank would cut."""
        return len(self.batch.trajectories)


Round = tuple[Share, ...]
"""One share per data rank."""


def deal(batch: TrainBatch, size: int, ranks: int, *, train: bool) -> list[Round]:
    """Deal the micro-batches of at most `size` samples to the data ranks.

    Args:
        train: whether rounds of samples with a weight have a backward.

    Raises:
        DataError: as `parts` and, for training, `sample_weights`.
    """
    slices = parts(batch, size)
    trained = (sample_weights(batch) > 0).tolist() if train else [False] * len(batch.trajectories)
    used = [index for index, part in enumerate(slices) if any(trained[part])]
    unused = [index for index in range(len(slices)) if index not in set(used)]
    rounds: list[Round] = []
    for indices, backward in ((unused, False), (used, True)):
        for first in range(0, len(indices), ranks):
            rounds.append(_round(batch, slices, indices[first : first + ranks], ranks, backward))
    return rounds


def _round(batch: TrainBatch, slices: Sequence[slice], indices: Sequence[int], ranks: int, backward: bool) -> Round:
    shares = []
    for index in indices:
        own = cut(batch, slices[index])
        kind: ShareKind = "train" if backward else "score"
        # Weights of 0 alone are refused where something is to be trained.
        shares.append(Share(index, kind, own if backward else replace(own, weights=None), backward))
    while len(shares) < ranks:
        shares.append(replace(shares[0], kind="repeat"))
    return tuple(shares)


def check_batch(batch: TrainBatch, size: int, *, rows: str, alike: bool, routed: bool) -> None:
    """Find out before any process starts what would stop one of them half-way.

    Args:
        rows: 'transitions', 'noised', 'generated', or of a token algorithm.
        alike: several data ranks must run the same forwards at the same time.
        routed: a row's timestep decides which part of the model works on it.

    Raises:
        DataError / ConsistencyError / CapabilityError: as the engines raise them for one micro-batch; and where
            samples of one batch would need different forwards on different ranks.
    """
    if rows in ("tokens", "given"):
        for _ in token_batches(replace(batch, weights=None), None, size, torch.device("cpu")):
            pass
        return
    trajectories = denoised(batch.trajectories)
    if rows == "transitions":
        stored_steps(batch)
        for part in parts(batch, size):
            check_equal(trajectories[part], replay_facts)
    if not alike:
        return
    if len({trajectory.request.guidance_scale != 1.0 for trajectory in trajectories}) > 1:
        raise ConsistencyError("samples with and without guidance in one batch need different forwards on each rank")
    if not routed:
        return
    if rows in ("noised", "generated"):
        raise CapabilityError(
            "this model chooses an expert by the noise level, which differs from rank to rank where rows are noised "
            "afresh; train engine 'fsdp2' cannot gather different experts on different ranks",
            remedy="set actor.world_size=1, or sequence ranks only (actor.sequence_parallel = actor.world_size)",
        )
    if len({tuple(trajectory.step_indices.tolist()) for trajectory in trajectories}) > 1:
        raise ConsistencyError(
            "samples of one batch stored different steps, and this model chooses an expert by the step; train engine "
            "'fsdp2' cannot gather different experts on different ranks",
            remedy="use a sampling plan with the same steps for all samples of a rollout, or actor.world_size=1",
        )


def in_order(results: Sequence[Sequence[Any]], rounds: Sequence[Round], layout: Layout) -> list[Any]:
    """What the leading ranks answered for each micro-batch, in the batch's order.

    Args:
        results: by rank, one entry per round.
        rounds: as dealt.
    """
    found: dict[int, Any] = {}
    for rank, answers in enumerate(results):
        for dealt, answer in zip(rounds, answers, strict=True):
            share = dealt[layout.data_rank(rank)]
            if layout.leads(rank) and share.kind != "repeat":
                found[share.index] = answer
    return [found[index] for index in sorted(found)]
