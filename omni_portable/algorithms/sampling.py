"""From window options to a sampling plan: shared by every algorithm that trains on stochastic steps. Torch-free."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from omni_portable.contracts.errors import ConfigError
from omni_portable.contracts.rollout import SamplingPlan, Schedule, StepKind
from omni_portable.samplers import windows

StochasticKind = Literal["sde", "cps", "dance_sde"]
WindowMode = Literal["all", "fixed", "random", "subset", "progressive"]


def choose_steps(
    num_steps: int,
    mode: WindowMode,
    size: int,
    window_range: Sequence[int],
    stochastic_steps: Sequence[int],
    seed: int,
    moves: int = 0,
) -> tuple[int, ...]:
    """Stochastic steps of one rollout round.

    Args:
        num_steps: T of the schedule.
        mode: 'all' steps but the last; 'fixed' (`stochastic_steps`, or the first `size` steps of the range); 'random'
            (`size` consecutive steps of the range) or 'subset' (`size` different ones), drawn from `seed`;
            'progressive' (`size` consecutive steps, `moves` times `size` further on, at most up to the range's end).
        window_range: [low, high), or empty for [0, T - 1).

    Raises:
        ConfigError: the steps do not fit the schedule.
    """
    low, high = window_range if window_range else (0, num_steps - 1)
    if mode == "all":
        return windows.all_steps(num_steps)
    if mode == "fixed" and stochastic_steps:
        return windows.fixed_steps(num_steps, stochastic_steps)
    if mode == "fixed":
        return windows.random_window(num_steps, size, low, low + size, seed)
    if mode == "progressive":
        start = min(low + moves * size, high - size)
        return windows.random_window(num_steps, size, start, start + size, seed)
    draw = windows.random_window if mode == "random" else windows.random_subset
    return draw(num_steps, size, low, high, seed)


def stochastic_plan(schedule: Schedule, kind: StepKind, noise_level: float, steps: tuple[int, ...]) -> SamplingPlan:
    """Plan that draws noise at `steps`, takes ODE steps elsewhere, and records what the loss needs.

    Raises:
        ConfigError: 'cps' on the last step, where its noise (and so its log-prob) vanishes.
    """
    refuse_noiseless_step(kind, steps, schedule.num_steps)
    return SamplingPlan(kind=kind, noise_level=noise_level, stochastic_steps=steps)


def refuse_noiseless_step(kind: StepKind, steps: tuple[int, ...], num_steps: int) -> None:
    """Raise ConfigError for 'cps' on the last of `num_steps` steps, where its noise (and so its log-prob) vanishes."""
    if kind == "cps" and steps and steps[-1] == num_steps - 1:
        raise ConfigError(
            f"stochastic step {steps[-1]} is the last one, where step kind 'cps' has no noise and no log-prob",
            remedy=f"keep the stochastic steps below {num_steps - 1}",
            choices=("sde", "dance_sde"),
        )


def deterministic_plan() -> SamplingPlan:
    """Plain ODE sampling without a record, as used for validation."""
    return SamplingPlan(record_transitions=False)


def check_window(mode: WindowMode, size: int, window_range: Sequence[int], stochastic_steps: Sequence[int]) -> None:
    """Refuse window options that can fit no schedule, or that the mode would ignore.

    Raises:
        ConfigError: names the keys (`window_size`, `window_range`, `stochastic_steps`, `window_mode`).
    """
    explicit = bool(stochastic_steps)
    if explicit and mode != "fixed":
        raise ConfigError(
            f"stochastic_steps={list(stochastic_steps)} is given, but window_mode={mode} ignores it",
            remedy="set window_mode=fixed or leave stochastic_steps empty",
        )
    if window_range and (len(window_range) != 2 or not 0 <= window_range[0] < window_range[1]):
        raise ConfigError(
            f"window_range={list(window_range)} is no range of steps", remedy="write [low,high] with 0 <= low < high"
        )
    if mode == "all" or explicit:
        if size or window_range:
            raise ConfigError(
                f"window_size={size} and window_range={list(window_range)} are ignored by "
                + ("an explicit stochastic_steps" if explicit else "window_mode=all"),
                remedy="leave them out or choose another window_mode",
                choices=("fixed", "random", "subset", "progressive"),
            )
        return
    if size < 1:
        raise ConfigError(f"window_mode={mode} needs window_size >= 1, got {size}", remedy="published values: 2 or 3")
    if window_range and size > window_range[1] - window_range[0]:
        raise ConfigError(
            f"window_size={size} does not fit window_range={list(window_range)}", remedy="widen the range or shrink it"
        )
