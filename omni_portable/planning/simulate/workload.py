"""What is simulated: a placement, and the seconds of every piece of work in it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from omni_portable.contracts.errors import ConfigError
from omni_portable.planning.placement.model import Costs
from omni_portable.planning.placement.profile import Placement, Profile, Row
from omni_portable.planning.simulate.seating import EXACT

MANY = 256
"""Replicas from which one call holds a replica's whole share of a step by default."""
CALLS = 8
"""Calls that make a replica's share below that."""

EXAMPLE = Profile(
    name="example: drawing and training a sample take one device-second each",
    rows=(Row(Placement("sync", 1, 1), 0.0, rollout_s=16.0, train_s=16.0, sync_s=1.0),),
    samples_per_prompt=16,
)


MAX_WAITING = 4_000_000
"""Samples of rounds that may be under way at a time; their calls and groups are held in memory."""
MAX_EVENTS = 200_000_000
"""Calls and groups of a whole run."""
MAX_SECONDS = 1e11
"""Simulated seconds of a whole run; the loop advances a day at a time at most."""


@dataclass(frozen=True)
class Loan:
    """Rollout engines on the trainer's devices that draw while it waits, as `trainer.hybrid` has them.

    Args:
        replicas: that are lent together.
        lend_below / reclaim_at: shares of a step's samples, as the keys of these names.
        sleep_level: of the engines while the trainer computes; 0 leaves them resident.
    """

    replicas: int = 1
    lend_below: float = 1.0
    reclaim_at: float = 1.0
    sleep_level: int = 1


@dataclass(frozen=True)
class Workload:
    """One simulated run.

    Args:
        sample_s: drawing one sample on one replica; the mean.
        train_s / sync_s / switch_s: of one step, of one publication, of sleeping and waking.
        score_s: scoring one sample with one scorer.
        scorers: that work side by side.
        samples: per prompt.
        piece: samples of one call to a replica.
        restart: whether interrupted calls begin again.
        overlap: whether calls are scored as they come instead of after the whole round.
        times: distribution, see :mod:`times`.
        rollout_ratios / train_ratios: measured ones, for times 'measured'.
        loan: lending of the trainer's devices; None where they are its own.
    """

    placement: Placement
    sample_s: float
    train_s: float
    sync_s: float = 0.0
    switch_s: float = 0.0
    score_s: float = 0.0
    scorers: int = 1
    samples: int = 1
    piece: int = 1
    restart: bool = True
    overlap: bool = True
    times: str = "constant"
    rollout_ratios: tuple[float, ...] = ()
    train_ratios: tuple[float, ...] = ()
    loan: Loan | None = None

    def calls(self, step: int) -> list[tuple[float, int, list[str]]]:
        """Mean seconds of each call of a round, its samples, and the prompt ids of its requests; groups lie side by
        side."""
        total, size = self.placement.prompts * self.samples, self.piece
        if self.placement.replicas > EXACT:  # nobody asks for the prompts
            sizes = [size] * (total // size) + [total % size] * (total % size > 0)
            return [(self.sample_s * count, count, []) for count in sizes]
        names = [f"{step}-{index // self.samples}" for index in range(total)]
        calls = [names[first : first + size] for first in range(0, total, size)]
        return [(self.sample_s * len(call), len(call), call) for call in calls]


def make_workload(
    profile: Profile,
    costs: Costs,
    placement: Placement,
    tokens: float,
    *,
    samples: int | None = None,
    piece: int | None = None,
    scorers: int = 1,
    times: str = "constant",
    ratios: tuple[Sequence[float], Sequence[float]] = ((), ()),
    loan: Loan | None = None,
) -> Workload:
    """The seconds that the planner's costs give for a placement, cut into calls.

    Args:
        samples: per prompt; None takes the profile's. Costs are per prompt: another number scales them.
        piece: samples per call; None makes it CALLS per replica and step, or 1 for MANY replicas.
    """
    own = profile.samples_per_prompt
    samples = samples or own
    weight, scale = profile.weight(tokens), samples / own
    speed = placement.tensor_parallel * profile.efficiency(placement.tensor_parallel)
    total = placement.prompts * samples
    calls = CALLS if placement.replicas < MANY else 1
    return Workload(
        placement,
        sample_s=(costs.rollout_fixed + costs.rollout_token * weight) / own / speed,
        train_s=placement.prompts * scale * (costs.train_fixed + costs.train_token * weight) / placement.train_devices,
        sync_s=costs.sync,
        switch_s=costs.switch,
        score_s=costs.reward / own * scorers,
        scorers=scorers,
        samples=samples,
        piece=piece or math.ceil(total / (placement.replicas * calls)),
        restart=profile.interrupted == "restart",
        overlap=placement.mode != "sync",
        times=times,
        rollout_ratios=tuple(ratios[0]),
        train_ratios=tuple(ratios[1]),
        loan=loan,
    )


def check_size(work: Workload, steps: int) -> None:
    """Refuse what would fill the memory or never end.

    Raises:
        ConfigError: names the figure that is too large, and what makes it up.
    """
    placed = work.placement
    samples = placed.prompts * work.samples
    rounds = 1 if placed.mode == "sync" else min(steps, 1 + (placed.max_staleness + 1) * placed.sync_rounds)
    if samples * rounds > MAX_WAITING:
        ahead = "" if placed.mode == "sync" else ", --max-staleness, --sync-rounds"
        raise ConfigError(
            f"{placed.prompts} prompts x {work.samples} samples, and {rounds} rounds of them under way at a time, make "
            f"{samples * rounds} samples, more than are simulated ({MAX_WAITING})",
            remedy=f"take less --prompts, --samples{ahead}",
        )
    calls = math.ceil(samples / work.piece)
    events = steps * (placed.prompts + calls)
    if events > MAX_EVENTS:
        raise ConfigError(
            f"{steps} steps of {placed.prompts} prompts in {calls} calls make {events} events, more than are simulated "
            f"({MAX_EVENTS})",
            remedy="take less --steps or --prompts, or a larger --piece",
        )
    seconds = samples * (work.sample_s / placed.replicas + work.score_s / work.scorers)
    seconds = steps * (seconds + work.train_s + work.sync_s + work.switch_s)
    if seconds > MAX_SECONDS:
        raise ConfigError(
            f"by the profile {steps} steps take up to {seconds:.3g} s, more than are simulated ({MAX_SECONDS:g})",
            remedy="look at the seconds, devices and tokens of the profile, or take less --steps",
        )
    if not work.sample_s + work.train_s + work.sync_s + work.score_s > 0:
        raise ConfigError(
            "by the profile nothing takes any time, so there is nothing to simulate",
            remedy="look at its 'rows': seconds of rollout, training or the whole step must be above 0",
        )
