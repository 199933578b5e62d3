"""Options that several diffusion algorithms have in common. Torch-free.

Defaults are those of the published flow_grpo base configuration where it has them; an algorithm overrides what its own
publication sets otherwise.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

from omni_portable.algorithms.sampling import check_window, choose_steps, refuse_noiseless_step
from omni_portable.config.rules import LARGEST_SHIFT
from omni_portable.contracts.algorithm import Requires
from omni_portable.contracts.errors import ConfigError

LARGEST = 1e6
"""Of options that name no bound of their own; a loss times more leaves fp32's exact range."""
TIMESTEPS = 10_000
"""Noise levels, or steps, of one sample at most."""
LEAST_DENOMINATOR = 1e-12
"""Of options that are added to, or bound, what is divided by; less is 0 beside a fp32 number."""
NOISE = (0.01, 10.0)
"""Of noise levels: less leaves ratios to rounding alone, more leaves nothing of the sample."""


def require(condition: bool, key: str, value: float, wanted: str, most: float = LARGEST) -> None:
    """`ConfigError` naming the key and its value where the condition does not hold, or the value is not finite or above
    `most`."""
    if not condition or not math.isfinite(value):
        raise ConfigError(f"{key}={value} is not possible", remedy=f"{key} must be finite and {wanted}")
    if value > most:
        raise ConfigError(f"{key}={value} is not possible", remedy=f"{key} must be at most {most:g}")


def require_denominator(key: str, value: float) -> None:
    """As :func:`require`, for what is added to a denominator or bounds it from below."""
    require(value >= LEAST_DENOMINATOR, key, value, f"at least {LEAST_DENOMINATOR:g}", most=1.0)


def require_shift(key: str, value: float) -> None:
    """As :func:`require`, for a shift of noise levels."""
    least = 1.0 / LARGEST_SHIFT
    require(value >= least, key, value, f"at least {least:g}", LARGEST_SHIFT)


@dataclass(frozen=True)
class AdvantageOptions:
    """How rewards become advantages."""

    advantage_clip: float = 5.0
    """Advantages are clamped to +- this in the loss."""
    global_std: bool = True
    """Divide by the std of all rewards of a rollout; false takes each group's own."""
    normalize_by_std: bool = True
    """False leaves advantages as differences to the group's mean."""
    std_ddof: int = 1
    """1: unbiased std (VeRL-Omni); 0: population std (flow_grpo)."""
    advantage_epsilon: float = 1e-4
    """Added to the std."""

    def __post_init__(self) -> None:
        """Refuse values that no data could make work (`ConfigError`)."""
        require(self.advantage_clip > 0.0, "advantage_clip", self.advantage_clip, "positive")
        require(self.std_ddof in (0, 1), "std_ddof", self.std_ddof, "0 or 1")
        require_denominator("advantage_epsilon", self.advantage_epsilon)


@dataclass(frozen=True)
class StochasticOptions(AdvantageOptions):
    """For algorithms that train on stored stochastic denoising steps."""

    step_kind: Literal["sde", "cps", "dance_sde"] = "sde"
    """Kernel of the stochastic steps; all other steps are ODE steps."""
    noise_level: float = 0.7
    """Eta of the kernel: published 0.7 to 1.3 for 'sde' and 'dance_sde', 0.8 for 'cps' (at most 1)."""
    window_mode: Literal["all", "fixed", "random", "subset", "progressive"] = "all"
    """Stochastic steps: 'all' but the last; 'fixed'; 'random' consecutive steps, or a random 'subset', per rollout;
    'progressive' consecutive steps that move towards the end of the schedule as training goes on."""
    window_size: int = 0
    """Number of stochastic steps of every mode but 'all'."""
    window_range: list[int] = field(default_factory=list)
    """[low, high): where the window may lie; empty means every step but the last. 'fixed' starts at low."""
    stochastic_steps: list[int] = field(default_factory=list)
    """Explicit step indices for window_mode 'fixed', instead of a size."""
    rounds_per_window: int = 25
    """Rollouts after which a 'progressive' window moves on by its size."""
    kl_coef: float = 0.0
    """Weight of the KL to the reference policy (the weights before training); 0 turns it off."""
    kl_kind: Literal["published", "exact"] = "published"
    """'exact' is the KL of the transitions; 'published' lacks a factor 1 / -dt for step kind 'sde'."""
    distill_coef: float = 0.0
    """Weight of the KL to a teacher (`model.teachers`) on the same transitions; 0 turns it off."""

    def __post_init__(self) -> None:
        """Refuse values that no schedule and no data could make work (`ConfigError`)."""
        super().__post_init__()
        least, most = NOISE
        noise = self.noise_level
        require(noise >= least, "noise_level", noise, f"at least {least:g}: without noise there is no log-prob", most)
        if self.step_kind == "cps":
            require(noise <= 1.0, "noise_level", noise, "at most 1 for step_kind=cps")
        require(self.kl_coef >= 0.0, "kl_coef", self.kl_coef, "0 (off) or positive")
        require(self.distill_coef >= 0.0, "distill_coef", self.distill_coef, "0 (off) or positive")
        require(self.rounds_per_window >= 1, "rounds_per_window", self.rounds_per_window, "at least 1")
        require(self.window_size >= 0, "window_size", self.window_size, "0 or more", TIMESTEPS)
        check_window(self.window_mode, self.window_size, self.window_range, self.stochastic_steps)

    def steps(self, num_steps: int, seed: int, round_number: int = 0) -> tuple[int, ...]:
        """Stochastic steps of one rollout round of a `num_steps` schedule.

        Raises:
            ConfigError: the window does not fit the schedule.
        """
        moves = max(0, round_number - 1) // self.rounds_per_window
        return choose_steps(
            num_steps, self.window_mode, self.window_size, self.window_range, self.stochastic_steps, seed, moves
        )

    def requires(self) -> Requires:
        """The policies besides the current one that the loss compares with."""
        return Requires(reference_policy=self.kl_coef > 0.0, teacher=self.distill_coef > 0.0)

    def check(self, num_steps: int) -> None:
        """Refuse, before anything loads, what a schedule of `num_steps` cannot carry out (`ConfigError`)."""
        refuse_noiseless_step(self.step_kind, self.steps(num_steps, 0), num_steps)


@dataclass(frozen=True)
class NoiseLevelOptions:
    """Which noise levels an algorithm trains clean samples at."""

    timesteps: Literal["schedule", "logit_normal"] = "schedule"
    """'schedule': sigmas of the rollout's own schedule, in random order; 'logit_normal': sigmoid of a normal number."""
    timestep_fraction: float = 1.0
    """Share of the schedule's steps that each sample is trained at ('schedule')."""
    timesteps_per_sample: int = 1
    """Noise levels that each sample is trained at ('logit_normal')."""
    sigma_shift: float = 1.0
    """'logit_normal' sigmas s become shift s / (1 + (shift - 1) s); 3 is usual for SD3."""

    def __post_init__(self) -> None:
        """Refuse values that leave nothing to train on (`ConfigError`)."""
        most = TIMESTEPS
        require(0.0 < self.timestep_fraction <= 1.0, "timestep_fraction", self.timestep_fraction, "above 0, at most 1")
        require(self.timesteps_per_sample >= 1, "timesteps_per_sample", self.timesteps_per_sample, "at least 1", most)
        require_shift("sigma_shift", self.sigma_shift)
