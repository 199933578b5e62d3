"""Every mode and split at given devices and lengths, and which one to take."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from omni_portable.contracts.errors import ConfigError
from omni_portable.planning.placement.fit import Fit, fit
from omni_portable.planning.placement.model import Prediction, predict
from omni_portable.planning.placement.profile import MODES, Placement, Profile, Row

EVEN = 0.02
"""Modes this close are called even, and the simpler one is taken."""
DIVIDING = 0.05
"""How much slower a split may be that is recommended because its trainers divide the samples evenly."""
MOST_DEVICES = 65_536
"""As the simulator."""
MAX_SPLITS = 128
"""Splits tried per mode and size of replicas."""
CONTRADICTION = 1.1
"""Stages longer than the step by more than this cannot have been measured in it."""
GRID = 48
"""Lengths at which signs are compared in the search for crossovers."""


@dataclass(frozen=True)
class Request:
    """What to predict.

    Args:
        devices: altogether.
        tokens: response lengths; empty takes those of the profile.
        prompts: of one step; None takes each mode's own of the profile.
        tensor_parallel: devices per replica that may be used; empty takes each mode's own of the profile.
        max_staleness / sync_rounds: of the asynchronous modes.
        pieces: calls to a replica that make its share of a step.
    """

    devices: int
    tokens: tuple[float, ...] = ()
    prompts: int | None = None
    tensor_parallel: tuple[int, ...] = ()
    max_staleness: int = 1
    sync_rounds: int = 1
    pieces: int = 8


@dataclass(frozen=True)
class Option:
    """A prediction with the range of all fits that explain the profile equally well (seconds per prompt)."""

    prediction: Prediction
    low: float
    high: float


@dataclass(frozen=True)
class Choice:
    """All options at one length, fastest first, and the recommended one with its reasons."""

    tokens: float
    options: tuple[Option, ...]
    recommended: Option
    reasons: tuple[str, ...]


@dataclass(frozen=True)
class Advice:
    """What `plan placement` says."""

    profile: Profile
    request: Request
    fit: Fit
    choices: tuple[Choice, ...]
    crossovers: tuple[float, ...]
    notes: tuple[str, ...]


NO_LENDING = (
    "lending the actor's devices (trainer.hybrid) is neither predicted nor recommended here: where the trainer waits "
    "for rollout it may shorten steps, which `omni-portable simulate --lend 1` shows with and without it"
)

RESCORED = (
    "training was measured in mode sync: where rollout runs ahead, algorithms with ratios have the actor score the "
    "samples once more before an update (rollout_correction.mode=auto), about a forward pass that is not in here"
)


def advise(profile: Profile, request: Request) -> Advice:
    """Fit the profile, predict every placement, recommend one per length.

    Raises:
        ConfigError: no placement fits the devices, or there are too many.
    """
    if request.devices > MOST_DEVICES:
        raise ConfigError(
            f"{request.devices} devices are more than are planned", remedy=f"give a number from 1 to {MOST_DEVICES}"
        )
    fits = fit(profile)
    candidates = list(placements(profile, request))
    if not candidates:
        raise ConfigError(
            f"no placement fits {request.devices} devices with replicas of {_parallel(profile, 'sync', request)}",
            remedy="ask for more devices, or name other sizes of replicas with --tensor-parallel",
        )
    lengths = request.tokens or tuple(sorted({row.tokens for row in profile.rows}))
    choices = tuple(_choice(profile, request, fits, candidates, tokens) for tokens in lengths)
    return Advice(
        profile,
        request,
        fits[0],
        choices,
        crossovers(profile, request, fits[0]),
        tuple(_notes(profile, request, fits, lengths, choices)),
    )


def crossovers(profile: Profile, request: Request, fitted: Fit) -> tuple[float, ...]:
    """Response lengths at which the fastest asynchronous split and 'sync' take equally long per prompt.

    Looked for between 1 token and twice the longest measured response, on a grid, then by bisection.
    """
    sync = [placement for placement in placements(profile, request) if placement.mode == "sync"]
    others = [placement for placement in placements(profile, request) if placement.mode == "separate_async"]
    longest = 2 * max(row.tokens for row in profile.rows)
    if not sync or not others or longest <= 1:
        return ()

    def ahead(tokens: float) -> float:
        def best(candidates: Sequence[Placement]) -> float:
            return min(predict(fitted.costs, profile, p, tokens, request.pieces).seconds_per_prompt for p in candidates)

        return best(sync) - best(others)

    grid = [float(longest ** (i / GRID)) for i in range(GRID + 1)]
    found = []
    for low, high in itertools.pairwise(grid):
        if ahead(low) * ahead(high) >= 0:
            continue
        for _ in range(30):
            middle = (low + high) / 2
            low, high = (middle, high) if ahead(middle) * ahead(low) > 0 else (low, middle)
        found.append((low + high) / 2)
    return tuple(found)


def placements(profile: Profile, request: Request, rollout_devices: int | None = None) -> Iterator[Placement]:
    """Every mode with every split; with `rollout_devices` only those whose rollout has so many."""
    for mode in MODES:
        prompts = request.prompts or max(row.placement.prompts for row in _like(profile, mode))
        for parallel in _parallel(profile, mode, request):
            if mode == "sync":
                if request.devices % parallel == 0:
                    yield Placement(mode, request.devices, request.devices, parallel, prompts)
                continue
            splits = _splits(request.devices, parallel)
            if rollout_devices is not None:
                possible = rollout_devices % parallel == 0 and rollout_devices < request.devices
                splits = [rollout_devices] if possible else []
            for rollout in splits:
                yield Placement(
                    mode, request.devices, rollout, parallel, prompts, request.max_staleness, request.sync_rounds
                )


def _splits(devices: int, parallel: int) -> list[int]:
    """Rollout devices to try: all whole numbers of replicas, or MAX_SPLITS of them, evenly spread."""
    most = (devices - 1) // parallel
    if most <= MAX_SPLITS:
        return [parallel * replicas for replicas in range(1, most + 1)]
    return [parallel * round(1 + (most - 1) * index / (MAX_SPLITS - 1)) for index in range(MAX_SPLITS)]


def _parallel(profile: Profile, mode: str, request: Request) -> list[int]:
    """Sizes of replicas: those asked for, or those that the mode (or, unmeasured, the other ones) was measured with."""
    if request.tensor_parallel:
        return sorted(set(request.tensor_parallel))
    return sorted({row.placement.tensor_parallel for row in _like(profile, mode)})


def _like(profile: Profile, mode: str) -> Sequence[Row]:
    same = [row for row in profile.rows if (row.placement.mode == "sync") == (mode == "sync")]
    return same or profile.rows


def _choice(
    profile: Profile, request: Request, fits: Sequence[Fit], candidates: Sequence[Placement], tokens: float
) -> Choice:
    options = []
    for placement in candidates:
        found = [predict(fitted.costs, profile, placement, tokens, request.pieces) for fitted in fits]
        each = [prediction.seconds_per_prompt for prediction in found]
        options.append(Option(found[0], min(each), max(each)))
    options.sort(key=lambda option: (option.prediction.seconds_per_prompt, MODES.index(_mode(option))))
    fastest = options[0].prediction.seconds_per_prompt
    if not fastest > 0:
        raise ConfigError(
            f"by the profile a step of {tokens:g} tokens takes no time at all, so nothing can be compared",
            remedy="look at its 'rows': seconds of rollout, training or the whole step must be above 0",
        )
    close = [option for option in options if option.prediction.seconds_per_prompt <= fastest * (1 + EVEN)]
    recommended = min(close, key=lambda option: (MODES.index(_mode(option)), option.prediction.seconds_per_prompt))
    if not _divides(profile, recommended.prediction.placement):
        within = recommended.prediction.seconds_per_prompt * (1 + DIVIDING)
        even = [
            option
            for option in options
            if option.prediction.seconds_per_prompt <= within and _divides(profile, option.prediction.placement)
        ]
        recommended = even[0] if even else recommended
    return Choice(tokens, tuple(options), recommended, tuple(_reasons(options, recommended)))


def _best_of_modes(options: Sequence[Option]) -> list[Placement]:
    """The fastest placement of each mode."""
    first: dict[str, Placement] = {}
    for option in options:
        first.setdefault(_mode(option), option.prediction.placement)
    return list({(p.split, p.prompts): p for p in reversed(first.values())}.values())


def _divides(profile: Profile, placement: Placement) -> bool:
    """Does every training device get as many samples of a step?"""
    return placement.prompts * profile.samples_per_prompt % placement.train_devices == 0


def _nearest(profile: Profile, placement: Placement) -> int:
    """The number of prompts nearest to a step's, the larger of two, whose samples divide among its trainers.

    Multiples of n / gcd(samples per prompt, n), so there always is one.
    """
    unit = placement.train_devices // math.gcd(profile.samples_per_prompt, placement.train_devices)
    below = placement.prompts // unit * unit
    near = (number for number in (below + unit, below) if number)
    return min(near, key=lambda number: abs(number - placement.prompts))


def _mode(option: Option) -> str:
    return option.prediction.placement.mode


def _reasons(options: Sequence[Option], recommended: Option) -> Iterator[str]:
    chosen = recommended.prediction
    prompts = chosen.placement.prompts
    if chosen.placement.mode == "sync":
        stages = {
            "rollout": chosen.rollout_s,
            "training": chosen.train_s,
            "reward": chosen.reward_s,
            "new weights": chosen.sync_s,
            "switching": chosen.switch_s,
        }
        each = ", ".join(f"{name} {seconds / prompts:.3f} s" for name, seconds in stages.items() if seconds)
        yield f"in turn on all devices: {each} per prompt"
    else:
        yield (
            f"{chosen.bound} holds it up; rollout devices are busy {chosen.rollout_busy:.0%} of the time, those of "
            f"the trainer {chosen.train_busy:.0%}"
        )
    if chosen.bound == "reward" or chosen.reward_s > max(chosen.rollout_s, chosen.train_s):
        yield "more devices shorten no reward: more workers (reward.workers) or faster scorers do"
    for mode in MODES:
        others = [option for option in options if _mode(option) == mode]
        if mode == chosen.placement.mode or not others:
            continue
        best = others[0].prediction
        ratio = best.seconds_per_prompt / chosen.seconds_per_prompt - 1
        word = "even with it" if abs(ratio) <= EVEN else f"{abs(ratio):.1%} {'slower' if ratio > 0 else 'faster'}"
        waiting = "" if mode == "sync" else f", held up by {best.bound}"
        yield f"{mode} at its best, {best.placement.split}: {best.seconds_per_prompt:.3f} s per prompt, {word}{waiting}"


def stages_beyond_the_step(row: Row) -> str:
    """In words, where a step is said to be shorter than the stages it is made of; else empty."""
    if row.step_s is None or row.rollout_s is None or row.train_s is None:
        return ""
    in_turn = row.placement.mode == "sync"
    least = row.rollout_s + row.train_s if in_turn else max(row.rollout_s, row.train_s)
    if least <= CONTRADICTION * row.step_s:
        return ""
    stages = "rollout and training in turn take" if in_turn else "its slower side takes"
    return f"{stages} {least:g} s of a step of {row.step_s:g} s"


def _notes(
    profile: Profile, request: Request, fits: Sequence[Fit], lengths: Sequence[float], choices: Sequence[Choice]
) -> Iterator[str]:
    if any(option.prediction.placement.mode != "sync" for choice in choices for option in choice.options):
        yield NO_LENDING
        if not any(row.placement.mode != "sync" for row in profile.rows):
            yield RESCORED
    measured = [row.tokens for row in profile.rows]
    batches = sorted({option.prediction.placement.prompts for choice in choices for option in choice.options})
    if len(batches) > 1:
        yield (
            f"steps hold different numbers of prompts ({' and '.join(map(str, batches))}): compare seconds per prompt, "
            "not per step"
        )
    if len(fits) > 1:
        yield (
            f"{len(fits)} sets of costs explain the profile equally well, because it does not tell rollout from "
            "training; ranges span them: rows with 'rollout_s' and 'train_s' would settle it"
        )
    if min(lengths) < min(measured) or max(lengths) > max(measured):
        yield f"lengths outside the measured {min(measured):g} to {max(measured):g} tokens are extrapolated"
    if len(set(measured)) == 1 and measured[0]:
        yield f"the profile holds one length only, {measured[0]:g} tokens: other lengths are guesses"
    for index, row in enumerate(profile.rows):
        if longer := stages_beyond_the_step(row):
            yield f"rows[{index}] contradicts itself: {longer}; 'step_s' is not used where both stages are given"
    if fits[0].error > 0.05:
        yield f"the model misses the profile's own rows by {fits[0].error:.0%}: trust differences above that only"
    for placement in dict.fromkeys(placed for choice in choices for placed in _best_of_modes(choice.options)):
        samples = placement.prompts * profile.samples_per_prompt
        if not _divides(profile, placement):
            step = _nearest(profile, placement)
            nearest = "1 prompt is the nearest that does" if step == 1 else f"{step} prompts are the nearest that do"
            yield (
                f"{placement.mode} {placement.split}: {samples} samples do not divide among {placement.train_devices} "
                f"training devices; {nearest}"
            )
    yield "memory is not considered: ask `omni-portable plan RECIPE --device NAME --devices N` whether it fits"
