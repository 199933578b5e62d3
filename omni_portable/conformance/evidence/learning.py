"""Short real runs and their curves: one on the device, and those of several seeds on the CPU to hold it against."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from omni_portable.config.loader import load_config
from omni_portable.config.schema import DeviceConfig, RunConfig
from omni_portable.conformance.evidence.recording import AGAIN
from omni_portable.contracts.errors import ConsistencyError, DataError
from omni_portable.trainer.run import run
from omni_portable.trainer.rundir import write_json
from omni_portable.trainer.saving import deciding_keys, is_free

LEARNING = "learning.json"
WIDTH = 4.0
"""Half width of the band in standard deviations of the reference."""
QUIET = (
    "trainer.loggers=[jsonl]",
    "trainer.progress='off'",
    "trainer.save_interval=0",
    "trainer.validation_images=0",
    "consistency.batch_shapes=[]",
)
"""What a short run does not need; no key of it decides a number."""


@dataclass(frozen=True)
class Curve:
    """One run: mean training reward of every step, held-out score before and after."""

    seed: int
    rewards: Sequence[float]
    before: float
    after: float

    @property
    def gain(self) -> float:
        return self.after - self.before


@dataclass(frozen=True)
class LearningReference:
    """What several seeds reached on the CPU.

    Args:
        recipe / overrides: what was run.
        curves: one per seed.
        keys: every configuration key that decides numbers, but for the device, the seed and the engines.
        provenance: where and with what.
    """

    recipe: str
    overrides: Sequence[str]
    curves: Sequence[Curve]
    keys: Mapping[str, Any]
    provenance: Mapping[str, Any]

    @property
    def mean(self) -> list[float]:
        """Mean reward per step over the seeds."""
        return [sum(step) / len(step) for step in zip(*(curve.rewards for curve in self.curves), strict=True)]

    @property
    def deviation(self) -> float:
        """Standard deviation of a step's reward between seeds (unbiased), pooled over the steps.

        Seeds differ in the prompts they draw as well as in noise, so one figure serves all steps; that of a single step
        would itself be uncertain by a third.
        """
        columns = list(zip(*(curve.rewards for curve in self.curves), strict=True))
        return math.sqrt(sum(_variance(column) for column in columns) / len(columns))

    @property
    def mean_gain(self) -> float:
        return sum(curve.gain for curve in self.curves) / len(self.curves)

    @property
    def gain_deviation(self) -> float:
        """Standard deviation of the gain between seeds (unbiased)."""
        return math.sqrt(_variance([curve.gain for curve in self.curves]))


def write_reference(folder: Path, reference: LearningReference) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / LEARNING, {"format": 1, **asdict(reference)})


def read_reference(folder: Path) -> LearningReference:
    """The curves in `folder`; DataError where the file is missing, damaged or holds fewer than two."""
    try:
        data = json.loads((folder / LEARNING).read_text(encoding="utf-8"))
        data.pop("format")
        reference = LearningReference(**{**data, "curves": [Curve(**curve) for curve in data["curves"]]})
        if len(reference.curves) < 2 or not math.isfinite(reference.deviation * reference.gain_deviation):
            raise DataError(f"{folder / LEARNING} holds {len(reference.curves)} curves, no spread", remedy=AGAIN)
    except (OSError, ValueError, TypeError, LookupError) as error:
        raise DataError(f"{folder / LEARNING} is damaged: {error}", remedy=AGAIN) from error
    return reference


def learning_config(
    recipe: str, overrides: Sequence[str], seed: int, run_dir: Path, device: DeviceConfig, engines: RunConfig | None
) -> RunConfig:
    """The configuration of one short run.

    Args:
        device: section of the device under test.
        engines: whose rollout and train engine to use; None keeps the recipe's.
    """
    config = load_config(recipe, [*overrides, *QUIET, f"trainer.seed={seed}", f"device.name={device.name}"])
    config.trainer.run_dir = str(run_dir)
    config.device = device
    if engines is not None:
        config.rollout = replace(config.rollout, engine=engines.rollout.engine, options=engines.rollout.options)
        config.actor = replace(config.actor, engine=engines.actor.engine, options=engines.actor.options)
    return config


def compared_keys(config: RunConfig) -> dict[str, Any]:
    """Key -> value of what two runs of a comparison share, as JSON has it."""
    free = ("device.", "trainer.seed", "rollout.engine", "rollout.options", "actor.engine", "actor.options")
    plain: dict[str, Any] = json.loads(json.dumps(deciding_keys(config), default=str))
    return {key: value for key, value in plain.items() if not key.startswith(free)}


def check_keys(reference: LearningReference, config: RunConfig) -> None:
    """Refuse to compare a recipe that changed since; a key that did not exist then is at its default and no change, nor
    is one that does not decide the numbers any more.

    Raises:
        ConsistencyError: names the keys.
    """
    now = compared_keys(config)
    changed = [key for key, value in reference.keys.items() if not is_free(key) and now.get(key) != value]
    if changed:
        raise ConsistencyError(
            f"recipe {reference.recipe} has changed since its learning curve was recorded: {', '.join(changed[:5])}",
            remedy=AGAIN,
        )


def run_curve(config: RunConfig) -> Curve:
    """Train and read the curve from what the run wrote."""
    outcome = run(config)
    lines = (outcome.run_dir / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    rewards = [row["reward/mean"] for row in map(json.loads, lines) if "reward/mean" in row]
    return Curve(config.trainer.seed, rewards, outcome.summary["before"], outcome.summary["after"])


def _variance(values: Sequence[float]) -> float:
    mean = sum(values) / len(values)
    return sum((value - mean) ** 2 for value in values) / (len(values) - 1)
