"""What single values may be: ranges of numbers and sets of names, as tables (the documentation is made from them)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from omni_portable.config.convert import Source, show, suggest
from omni_portable.contracts.errors import ConfigError


@dataclass(frozen=True)
class Range:
    """Bounds of a number; `open_low` / `open_high` leave the bound itself out."""

    low: float = -math.inf
    high: float = math.inf
    open_low: bool = False
    open_high: bool = False

    def holds(self, value: float) -> bool:
        above = value > self.low if self.open_low else value >= self.low
        below = value < self.high if self.open_high else value <= self.high
        return above and below

    def __str__(self) -> str:
        low = f"{'above' if self.open_low else 'at least'} {self.low:g}" if self.low > -math.inf else ""
        high = f"{'below' if self.open_high else 'at most'} {self.high:g}" if self.high < math.inf else ""
        return " and ".join(part for part in (low, high) if part)


AT_LEAST_0 = Range(low=0)
AT_LEAST_1 = Range(low=1)
POSITIVE = Range(low=0, open_low=True)
FRACTION = Range(low=0, high=1, open_high=True)
PIXELS = Range(low=8)
COUNT = Range(low=1, high=1_000_000)

RANGES: Mapping[str, Range] = {
    "device.threads": Range(low=0, high=4096),
    "model.lora.rank": Range(low=0, high=65536),
    "model.lora.alpha": AT_LEAST_0,
    "model.lora.dropout": FRACTION,
    "rollout.n": COUNT,
    "rollout.max_num_seqs": AT_LEAST_1,
    "rollout.num_steps": Range(low=1, high=10_000),
    "rollout.height": PIXELS,
    "rollout.width": PIXELS,
    "rollout.num_frames": Range(low=1, high=100_000),
    "rollout.frame_rate": Range(low=0, high=1000),
    "rollout.guidance_scale": AT_LEAST_0,
    "rollout.max_new_tokens": COUNT,
    "rollout.temperature": AT_LEAST_0,
    "rollout.top_p": Range(low=0, high=1, open_low=True),
    "rollout.top_k": AT_LEAST_0,
    "rollout.validation_temperature": AT_LEAST_0,
    "rollout.prompt_cache_size": AT_LEAST_0,
    "rollout.replicas": Range(low=1, high=100_000),
    "rollout.attempts": AT_LEAST_1,
    "launcher.restarts": AT_LEAST_0,
    "rollout.sleep_level": Range(low=0, high=2),
    "actor.lr": AT_LEAST_0,
    "actor.weight_decay": AT_LEAST_0,
    "actor.beta1": FRACTION,
    "actor.beta2": FRACTION,
    "actor.eps": POSITIVE,
    "actor.warmup_steps": AT_LEAST_0,
    "actor.grad_clip": AT_LEAST_0,
    "actor.mini_batch_size": AT_LEAST_0,
    "actor.micro_batch_size": AT_LEAST_0,
    "actor.epochs": AT_LEAST_1,
    "actor.ema_decay": FRACTION,
    "actor.world_size": Range(low=1, high=4096),
    "actor.sequence_parallel": Range(low=1, high=64),
    "actor.tensor_parallel": Range(low=1, high=64),
    "actor.rank_timeout_s": Range(low=0, high=1e6, open_low=True),
    "reward.retries": AT_LEAST_0,
    "reward.timeout_s": Range(low=0, high=1e9, open_low=True),
    "teacher.workers": Range(low=1, high=1024),
    "teacher.timeout_s": Range(low=0, high=1e9, open_low=True),
    "teacher.retries": AT_LEAST_0,
    "teacher.max_mib": Range(low=1, high=1_048_576),
    "data.train_batch_size": COUNT,
    "data.max_validation_prompts": AT_LEAST_0,
    "dataplane.max_staleness": AT_LEAST_0,
    "validation.num_steps": Range(low=0, high=10_000),
    "validation.height": AT_LEAST_0,
    "validation.width": AT_LEAST_0,
    "validation.num_frames": Range(low=0, high=100_000),
    "validation.guidance_scale": AT_LEAST_0,
    "trainer.total_steps": AT_LEAST_1,
    "trainer.sync_interval": AT_LEAST_1,
    "trainer.sync_attempts": Range(low=1, high=100),
    "trainer.hybrid.lend_below": Range(low=0, high=1, open_low=True),
    "trainer.hybrid.reclaim_at": Range(low=0, high=1, open_low=True),
    "trainer.hybrid.sleep_level": Range(low=0, high=2),
    "reward.workers": Range(low=1, high=1024),
    "trainer.seed": Range(low=0, high=2**63 - 1),
    "trainer.save_interval": AT_LEAST_0,
    "trainer.keep_checkpoints": AT_LEAST_0,
    "trainer.validate_interval": AT_LEAST_0,
    "trainer.validation_samples": COUNT,
    "trainer.validation_images": AT_LEAST_0,
    "consistency.max_logprob_gap": AT_LEAST_0,
    "rollout_correction.threshold": POSITIVE,
    "rollout_correction.lower": AT_LEAST_0,
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
    "rollout_correction.mode": ("off", "decoupled", "bypass"),
    "rollout_correction.importance": ("off", "step", "trajectory"),
}

ATTENTION_COMPONENTS = ("transformer", "text_encoder", "vae", "language_model")
"""What `device.attention` may name: `contracts.device.Component`."""


def lookup(config: Any, key: str) -> Any:
    """The value of a dotted key in a configuration object."""
    for part in key.split("."):
        config = getattr(config, part)
    return config


def check_values(config: Any, source: Source) -> None:
    """Check every value that a table above restricts; all numbers must be finite.

    Raises:
        ConfigError: names the key, the value as typed, and what is allowed.
    """
    for key, bounds in RANGES.items():
        value = lookup(config, key)
        if value is None:
            continue
        if isinstance(value, float) and not math.isfinite(value):
            raise ConfigError(f"{source.describe(key, value)}: '{key}' must be finite")
        if not bounds.holds(value):
            raise ConfigError(f"{source.describe(key, value)}: '{key}' must be {bounds}, got {show(value)}")
    for size in config.consistency.batch_shapes:
        if size < 1:
            raise ConfigError(f"consistency.batch_shapes holds {size}, but a batch has at least 1 sample")
    for key, names in CHOICES.items():
        value = lookup(config, key)
        if value not in names:
            raise ConfigError(
                f"{source.describe(key, value)}: '{show(value)}' is no valid {key}",
                remedy=suggest(str(value), names),
                choices=names,
            )
