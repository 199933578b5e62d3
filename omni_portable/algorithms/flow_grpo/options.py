"""Options of Flow-GRPO. Torch-free."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

from omni_portable.algorithms.sampling import check_window, choose_steps, refuse_noiseless_step
from omni_portable.contracts.algorithm import Requires
from omni_portable.contracts.errors import ConfigError


@dataclass(frozen=True)
class FlowGRPOOptions:
    """Defaults are those of the published flow_grpo base configuration where it has them."""

    step_kind: Literal["sde", "cps", "dance_sde"] = "sde"
    """Kernel of the stochastic steps; all other steps are ODE steps."""
    noise_level: float = 0.7
    """Eta of the kernel: published 0.7 to 1.3 for 'sde' and 'dance_sde', 0.8 for 'cps' (at most 1)."""
    window_mode: Literal["all", "fixed", "random", "subset"] = "all"
    """Stochastic steps: 'all' but the last; 'fixed'; 'random' consecutive steps, or a random 'subset', per rollout."""
    window_size: int = 0
    """Number of stochastic steps for 'fixed', 'random' and 'subset'."""
    window_range: list[int] = field(default_factory=list)
    """[low, high): where the window may lie; empty means every step but the last. 'fixed' starts at low."""
    stochastic_steps: list[int] = field(default_factory=list)
    """Explicit step indices for window_mode 'fixed', instead of a size."""
    clip_ratio: float = 1e-4
    """Ratios beyond 1 +- this are clipped; small because log-probs are means over latent elements."""
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
    kl_coef: float = 0.0
    """Weight of the KL to the reference policy (the weights before training); 0 turns it off."""
    kl_kind: Literal["published", "exact"] = "published"
    """'exact' is the KL of the transitions; 'published' lacks a factor 1 / -dt for step kind 'sde'."""

    def __post_init__(self) -> None:
        """Refuse values that no schedule and no data could make work.

        Raises:
            ConfigError: names the key and its value.
        """
        _require(self.noise_level > 0.0, "noise_level", self.noise_level, "above 0: without noise there is no log-prob")
        if self.step_kind == "cps":
            _require(self.noise_level <= 1.0, "noise_level", self.noise_level, "at most 1 for step_kind=cps")
        _require(0.0 < self.clip_ratio < 1.0, "clip_ratio", self.clip_ratio, "between 0 and 1")
        _require(self.advantage_clip > 0.0, "advantage_clip", self.advantage_clip, "positive")
        _require(self.std_ddof in (0, 1), "std_ddof", self.std_ddof, "0 or 1")
        _require(self.advantage_epsilon > 0.0, "advantage_epsilon", self.advantage_epsilon, "positive")
        _require(self.kl_coef >= 0.0, "kl_coef", self.kl_coef, "0 (off) or positive")
        check_window(self.window_mode, self.window_size, self.window_range, self.stochastic_steps)

    def steps(self, num_steps: int, seed: int) -> tuple[int, ...]:
        """Stochastic steps of one rollout round of a `num_steps` schedule.

        Raises:
            ConfigError: the window does not fit the schedule.
        """
        return choose_steps(
            num_steps, self.window_mode, self.window_size, self.window_range, self.stochastic_steps, seed
        )

    def requires(self) -> Requires:
        """The reference policy, where its KL has a weight."""
        return Requires(reference_policy=self.kl_coef > 0.0)

    def check(self, num_steps: int) -> None:
        """Refuse, before anything loads, what a schedule of `num_steps` cannot carry out (`ConfigError`)."""
        refuse_noiseless_step(self.step_kind, self.steps(num_steps, 0), num_steps)


def _require(condition: bool, key: str, value: float, wanted: str) -> None:
    if not condition or not math.isfinite(value):
        raise ConfigError(f"{key}={value} is not possible", remedy=f"{key} must be finite and {wanted}")
