"""A profile from the figures of a run: the seconds that each role was busy, step by step."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from omni_portable.contracts.errors import ConfigError, RunDirectoryError
from omni_portable.planning.placement.parse import LARGEST, parse_profile
from omni_portable.planning.placement.profile import MODES, SCHEMA, SCHEMA_VERSION, Profile

WARM_UP = 1
"""First steps left out where more follow: they compile, fill caches and allocate."""
SPREAD = 1.5
"""Ratio of the longest to the shortest step's mean response from which lengths are told apart."""
BINS = 3
FEW = 5
"""Steps below which a median is still the chance of single ones."""
NEEDED = ("trainer.mode", "data.train_batch_size", "rollout.n")
"""Keys of a run's configuration without which its seconds mean nothing."""
LEAST = {"dataplane.max_staleness": 0}
"""Key -> smallest number it may be, where that is not 1."""
MEND = "bring back the file that training wrote, or write the rows of a profile by hand (--profile)"
SOURCES = {
    "step_s": ("timing_s/step",),
    "rollout_s": ("role_s/rollout/busy", "timing_s/rollout"),
    "train_s": ("timing_s/update",),
    "reward_s": ("role_s/reward/busy", "timing_s/reward"),
    "sync_s": ("timing_s/sync",),
}
"""Field of a row -> metrics that give it, the first that is there."""
DRAWN = "perf/rollout_samples"
"""Samples that were drawn in the seconds of a step's figures; where rollout runs ahead, those of other steps."""


def profile_of_run(
    run_dir: Path, devices: int | None = None, rollout_devices: int | None = None, tensor_parallel: int = 1
) -> Profile:
    """Rows of medians over the steps of a run; in mode sync, steps with responses of very different lengths give
    several rows.

    Where rollout runs ahead, what rollout and rewards did in a step was for others: the first draws several rounds, the
    last ones none. There the seconds of a round are those of all steps for each sample that they drew.

    Args:
        run_dir: what training wrote; the run may go on, and its last line may be cut off.
        devices / rollout_devices: that the run used; None takes what its configuration says.
        tensor_parallel: devices of one rollout replica.

    Raises:
        RunDirectoryError: there is no such run, its files are damaged, or it has no step with timings.
        ConfigError: the devices do not fit the run's mode, or a run in turn drew on fewer devices than it trained on.
    """
    config = _config(run_dir)
    steps = _steps(run_dir / "metrics.jsonl")
    mode = str(_at(config, "trainer.mode", ""))
    if mode not in MODES:
        raise RunDirectoryError(
            f"{run_dir / 'config.yaml'} is damaged: its trainer.mode is '{mode}'", remedy=MEND, choices=MODES
        )
    prompts, samples = (_whole(run_dir, config, key, 1) for key in ("data.train_batch_size", "rollout.n"))
    placed: dict[str, Any] = {"mode": mode, "tensor_parallel": tensor_parallel}
    if mode == "sync":
        placed["devices"] = devices or _in_turn(run_dir, config)
    else:
        placed["rollout_devices"] = rollout_devices or _whole(run_dir, config, "rollout.replicas", 1) * tensor_parallel
        trainers = _whole(run_dir, config, "actor.world_size", 1)
        placed["devices"] = devices or trainers + placed["rollout_devices"]
        placed["max_staleness"] = _whole(run_dir, config, "dataplane.max_staleness", 1)
        optimizer_steps = max(1.0, statistics.median(step.get("actor/optimizer_steps", 1.0) for step in steps))
        placed["sync_rounds"] = math.ceil(_whole(run_dir, config, "trainer.sync_interval", 1) / optimizer_steps)
    rows = []
    for part in _by_length(steps) if mode == "sync" else [steps]:
        row = placed | {"prompts": prompts, "tokens": _median(part, ("response/length_mean",)) or 0.0}
        seconds = {name: _median(part, metrics) for name, metrics in SOURCES.items()}
        if mode != "sync":
            ahead = {name: _per_sample(run_dir, part, SOURCES[name]) for name in ("rollout_s", "reward_s")}
            seconds |= {name: value and value * prompts * samples for name, value in ahead.items()}
        rows.append(row | {name: value for name, value in seconds.items() if value is not None})
    document = {
        "schema": SCHEMA,
        "schema_version": SCHEMA_VERSION,
        "name": str(_at(config, "recipe", run_dir.name)),
        "source": f"medians over {_counted(len(steps))} of {run_dir}",
        "samples_per_prompt": samples,
        "interrupted": "continue" if any(row["tokens"] for row in rows) else "restart",
        "rows": rows,
    }
    return parse_profile(document, f"the profile of {run_dir}")


def _config(run_dir: Path) -> Mapping[str, Any]:
    path = run_dir / "config.yaml"
    if not path.is_file():
        raise RunDirectoryError(
            f"{run_dir} is no run directory: it holds no config.yaml",
            remedy="name the folder that training printed (trainer.run_dir), or a profile with --profile",
        )
    try:
        value = yaml.safe_load(_text(path))
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise RunDirectoryError(f"{path} is damaged: {error}") from error
    for key in NEEDED:
        if _at(value, key, None) is None:
            raise RunDirectoryError(f"{path} is damaged: it has no {key}", remedy=MEND)
    return dict(value)


def _at(config: Any, key: str, default: Any) -> Any:
    value: Any = config
    for part in key.split("."):
        if not isinstance(value, Mapping) or part not in value:
            return default
        value = value[part]
    return value


def _whole(run_dir: Path, config: Mapping[str, Any], key: str, default: int) -> int:
    value = _at(config, key, default)
    if type(value) is not int or not LEAST.get(key, 1) <= value <= 1_000_000_000:
        raise RunDirectoryError(
            f"{run_dir / 'config.yaml'} is damaged: its {key} is {value!r}",
            remedy=MEND,
        )
    return value


def _in_turn(run_dir: Path, config: Mapping[str, Any]) -> int:
    """Devices of a run in mode sync, as its configuration says: as many draw as train.

    Raises:
        ConfigError: they do not.
    """
    ranks, replicas = (_whole(run_dir, config, key, 1) for key in ("actor.world_size", "rollout.replicas"))
    if ranks != replicas:
        raise ConfigError(
            f"{run_dir} trained in {ranks} processes and drew in {replicas} in turn, and a row has one number of "
            "devices for both",
            remedy=f"measure a run with rollout.replicas={ranks}, or say with --measured-devices what it counts as",
        )
    return ranks


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise RunDirectoryError(f"{path} cannot be read: {error.strerror}") from error


def _steps(path: Path) -> list[dict[str, float]]:
    """Rows of training steps with their timings, without the warm-up; the last line may be cut off."""
    lines = _text(path).splitlines() if path.is_file() else []
    found: dict[int, dict[str, float]] = {}
    for number, line in enumerate(lines, start=1):
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            if number == len(lines):
                break
            raise RunDirectoryError(f"line {number} of {path} is damaged: {error}") from error
        if isinstance(row, dict) and type(row.get("step")) is int:
            figures = {name: float(value) for name, value in row.items() if _finite(value)}
            _refuse_negative(figures, f"line {number} of {path}")
            if all(any(metric in figures for metric in SOURCES[name]) for name in ("rollout_s", "train_s")):
                found[row["step"]] = figures
    steps = [found[step] for step in sorted(found)]
    if not steps:
        raise RunDirectoryError(
            f"{path} has no training step with timings", remedy="let the run finish two steps or more"
        )
    return steps[WARM_UP:] if len(steps) > WARM_UP else steps


def _refuse_negative(figures: Mapping[str, float], where: str) -> None:
    """Seconds and tokens are never below 0."""
    read = ("response/length_mean", DRAWN, *(metric for metrics in SOURCES.values() for metric in metrics))
    for metric in read:
        if figures.get(metric, 0.0) < 0:
            raise RunDirectoryError(
                f"{where} is damaged: its {metric} is {figures[metric]:g}",
                remedy="mend or remove the line; seconds and tokens are 0 or more",
            )


def _counted(steps: int) -> str:
    return f"{steps} step{'s' * (steps != 1)}" + (", which are few," if steps < FEW else "")


def _finite(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= LARGEST


def _by_length(steps: Sequence[dict[str, float]]) -> list[Sequence[dict[str, float]]]:
    lengths = [step.get("response/length_mean", 0.0) for step in steps]
    if len(steps) < 2 * BINS or max(lengths) < SPREAD * min(lengths) or min(lengths) <= 0:
        return [steps]
    ordered = sorted(steps, key=lambda step: step["response/length_mean"])
    edges = [round(index * len(ordered) / BINS) for index in range(BINS + 1)]
    return [ordered[edges[index] : edges[index + 1]] for index in range(BINS)]


def _per_sample(run_dir: Path, steps: Sequence[Mapping[str, float]], metrics: Sequence[str]) -> float | None:
    """Seconds of the steps for each sample that was drawn in them; None where nothing says seconds.

    Raises:
        RunDirectoryError: nothing was drawn in them.
    """
    drawn = sum(step.get(DRAWN, 0.0) for step in steps)
    if not drawn:
        raise RunDirectoryError(
            f"{run_dir}: no samples were drawn after the first step ({DRAWN} in metrics.jsonl), so nothing tells how "
            "long a round takes: rollout ran ahead of all steps",
            remedy="let it make more than dataplane.max_staleness + 2 steps, or measure in trainer.mode=sync",
        )
    for metric in metrics:
        values = [step[metric] for step in steps if metric in step]
        if values:
            return sum(values) / drawn
    return None


def _median(steps: Sequence[Mapping[str, float]], metrics: Sequence[str]) -> float | None:
    """Over the steps that have the first of the metrics that any has."""
    for metric in metrics:
        values = [step[metric] for step in steps if metric in step]
        if values:
            return statistics.median(values)
    return None
