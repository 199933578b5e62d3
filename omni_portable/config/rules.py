"""What single values may be: ranges of numbers and sets of names, as tables (the documentation is made from them)."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from omni_portable.config.convert import Source, join, show, suggest
from omni_portable.contracts.errors import ConfigError


@dataclass(frozen=True)
class Range:
    """Bounds of a number; `open_low` / `open_high` leave the bound itself out, `or_zero` lets 0 in besides."""

    low: float = -math.inf
    high: float = math.inf
    open_low: bool = False
    open_high: bool = False
    or_zero: bool = False

    def holds(self, value: float) -> bool:
        if self.or_zero and value == 0:
            return True
        above = value > self.low if self.open_low else value >= self.low
        below = value < self.high if self.open_high else value <= self.high
        return above and below

    def __str__(self) -> str:
        low = f"{'above' if self.open_low else 'at least'} {self.low:g}" if self.low > -math.inf else ""
        high = f"{'below' if self.open_high else 'at most'} {self.high:g}" if self.high < math.inf else ""
        return ("0, or " if self.or_zero else "") + " and ".join(part for part in (low, high) if part)


LARGEST = 1e9
"""In size, of every number that no table restricts further; what is larger overflows somewhere, or is a slip."""
FRACTION = Range(low=0, high=1, open_high=True)
SIDE = 65536
"""Pixels; no image or video format holds larger sides."""
PIXELS = Range(low=8, high=SIDE)
COUNT = Range(low=1, high=1_000_000)
COUNT_OR_0 = Range(low=0, high=1_000_000)
STEPS = Range(low=1, high=1e9)
STEPS_OR_0 = Range(low=0, high=1e9)
GUIDANCE = Range(low=0, high=100)
"""Published scales end below 20; velocities times some hundreds leave the range of half precision."""
LARGEST_SHIFT = 1000.0
"""Of shifts of noise levels; beyond, all levels are the same."""
WEIGHT = Range(low=-1e6, high=1e6)
"""Of a scorer; rewards and their sums are fp32 numbers."""
TEMPERATURE = Range(low=0.01, high=100, or_zero=True)
"""Logits divided by less overflow half precision, by more they are all the same."""

RANGES: Mapping[str, Range] = {
    "device.threads": Range(low=0, high=4096),
    "model.lora.rank": Range(low=0, high=65536),
    "model.lora.alpha": Range(low=0, high=1e6),
    "model.lora.dropout": FRACTION,
    "rollout.n": COUNT,
    "rollout.max_num_seqs": COUNT,
    "rollout.num_steps": Range(low=1, high=10_000),
    "rollout.height": PIXELS,
    "rollout.width": PIXELS,
    "rollout.num_frames": Range(low=1, high=100_000),
    "rollout.frame_rate": Range(low=0, high=1000),
    "rollout.guidance_scale": GUIDANCE,
    "rollout.max_new_tokens": COUNT,
    "rollout.temperature": TEMPERATURE,
    "rollout.top_p": Range(low=0, high=1, open_low=True),
    "rollout.top_k": COUNT_OR_0,
    "rollout.validation_temperature": TEMPERATURE,
    "rollout.prompt_cache_size": STEPS_OR_0,
    "rollout.replicas": Range(low=1, high=100_000),
    "rollout.attempts": Range(low=1, high=1000),
    "launcher.restarts": COUNT_OR_0,
    "rollout.sleep_level": Range(low=0, high=2),
    "actor.lr": Range(low=0, high=10),
    "actor.weight_decay": Range(low=0, high=1),
    "actor.beta1": FRACTION,
    "actor.beta2": FRACTION,
    "actor.eps": Range(low=1e-30, high=1),
    "actor.warmup_steps": STEPS_OR_0,
    "actor.grad_clip": Range(low=1e-6, high=1e6, or_zero=True),
    "actor.mini_batch_size": STEPS_OR_0,
    "actor.micro_batch_size": COUNT_OR_0,
    "actor.epochs": Range(low=1, high=10_000),
    "actor.ema_decay": FRACTION,
    "actor.world_size": Range(low=1, high=4096),
    "actor.sequence_parallel": Range(low=1, high=64),
    "actor.tensor_parallel": Range(low=1, high=64),
    "actor.rank_timeout_s": Range(low=0, high=1e6, open_low=True),
    "reward.retries": Range(low=0, high=100),
    "reward.timeout_s": Range(low=0, high=1e9, open_low=True),
    "teacher.workers": Range(low=1, high=1024),
    "teacher.timeout_s": Range(low=0, high=1e9, open_low=True),
    "teacher.retries": Range(low=0, high=100),
    "teacher.max_mib": Range(low=1, high=1_048_576),
    "data.train_batch_size": COUNT,
    "data.max_validation_prompts": STEPS_OR_0,
    "dataplane.max_staleness": COUNT_OR_0,
    "validation.num_steps": Range(low=0, high=10_000),
    "validation.height": Range(low=8, high=SIDE, or_zero=True),
    "validation.width": Range(low=8, high=SIDE, or_zero=True),
    "validation.num_frames": Range(low=0, high=100_000),
    "validation.guidance_scale": GUIDANCE,
    "trainer.total_steps": STEPS,
    "trainer.sync_interval": STEPS,
    "trainer.sync_attempts": Range(low=1, high=100),
    "trainer.hybrid.lend_below": Range(low=0, high=1, open_low=True),
    "trainer.hybrid.reclaim_at": Range(low=0, high=1, open_low=True),
    "trainer.hybrid.sleep_level": Range(low=0, high=2),
    "reward.workers": Range(low=1, high=1024),
    "trainer.seed": Range(low=0, high=2**63 - 1),
    "trainer.save_interval": STEPS_OR_0,
    "trainer.keep_checkpoints": STEPS_OR_0,
    "trainer.validate_interval": STEPS_OR_0,
    "trainer.validation_samples": COUNT,
    "trainer.validation_images": COUNT_OR_0,
    "consistency.max_logprob_gap": Range(low=0, high=1e6),
    "rollout_correction.threshold": Range(low=1, high=1e6),
    "rollout_correction.lower": Range(low=0, high=1),
    "consistency.batch_shapes": COUNT,
}

CHOICES: Mapping[str, tuple[str, ...]] = {
    "device.dtype": ("auto", "float32", "bfloat16", "float16"),
    "actor.sharding": ("full", "keep"),
    "actor.offload": ("none", "cpu"),
    "actor.reduce_dtype": ("float32", "bfloat16"),
    "actor.gradient_sync": ("last", "each"),
    "reward.on_error": ("fail", "drop_group"),
    "teacher.placement": ("engine", "pool"),
    "teacher.on_error": ("fail", "drop_group"),
    "trainer.mode": ("sync", "separate_async", "fully_async"),
    "trainer.progress": ("auto", "rich", "plain", "off"),
    "consistency.measure": ("first_mini_batch", "full", "off"),
    "rollout_correction.mode": ("auto", "off", "decoupled", "bypass"),
    "rollout_correction.importance": ("off", "step", "trajectory"),
}

ATTENTION_COMPONENTS = ("transformer", "text_encoder", "vae", "language_model")
"""What `device.attention` may name: `contracts.device.Component`."""


def lookup(config: Any, key: str) -> Any:
    """The value of a dotted key in a configuration object."""
    for part in key.split("."):
        config = getattr(config, part)
    return config


def check_number(key: str, value: float, bounds: Range, source: Source) -> None:
    """`ConfigError` that names the key, unless the value is finite and within its bounds."""
    if isinstance(value, float) and not math.isfinite(value):
        raise ConfigError(f"{source.describe(key, value)}: '{key}' must be a finite number")
    if not bounds.holds(value):
        raise ConfigError(f"{source.describe(key, value)}: '{key}' must be {bounds}, got {show(value)}")


def _numbers(value: Any) -> Sequence[Any]:
    if value is None:
        return ()
    return value if isinstance(value, list) else (value,)


def _check_sizes(value: Any, key: str, source: Source) -> None:
    """Every number below `key` is finite, and where no table restricts it at most :data:`LARGEST` in size."""
    if isinstance(value, Mapping):
        for name, inner in value.items():
            _check_sizes(inner, join(key, name), source)
    elif isinstance(value, (list, tuple)):
        for inner in value:
            _check_sizes(inner, key, source)
    elif isinstance(value, (int, float)) and key not in RANGES:
        check_number(key, value, Range(-LARGEST, LARGEST), source)


def check_values(config: Any, source: Source) -> None:
    """Check every value that a table above restricts; all numbers must be finite.

    Raises:
        ConfigError: names the key, the value as typed, and what is allowed.
    """
    for key, bounds in RANGES.items():
        for value in _numbers(lookup(config, key)):
            check_number(key, value, bounds, source)
    _check_sizes(dataclasses.asdict(config), "", source)
    for key, names in CHOICES.items():
        value = lookup(config, key)
        if value not in names:
            raise ConfigError(
                f"{source.describe(key, value)}: '{show(value)}' is no valid {key}",
                remedy=suggest(str(value), names),
                choices=names,
            )
