"""What a person sees while it runs: step, reward, seconds by stage, time left."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from typing import Protocol

SHOWN = {
    "rollout": ("role_s/rollout/busy", "timing_s/rollout"),
    "reward": ("role_s/reward/busy", "timing_s/reward"),
    "update": ("timing_s/update",),
    "sync": ("timing_s/sync",),
    "validate": ("timing_s/validate",),
}
"""Stage -> metrics of its seconds, the first that is there. Of what goes on side by side, how long any of it did."""


class Progress(Protocol):
    def stage(self, text: str) -> None: ...

    def step(self, step: int, metrics: Mapping[str, float]) -> None: ...

    def note(self, text: str) -> None: ...

    def close(self) -> None: ...


def summary_line(step: int, total: int, metrics: Mapping[str, float], left: float) -> str:
    """One line per step: reward, validation if there was one, seconds by stage, time left."""
    parts = [f"step {step}/{total}"]
    if "reward/mean" in metrics:
        parts.append(f"reward {metrics['reward/mean']:.3f}")
    if "validation/reward_mean" in metrics:
        error = "" if metrics.get("validation/count") == 1 else f" +- {metrics['validation/reward_stderr']:.3f}"
        parts.append(f"validation {metrics['validation/reward_mean']:.3f}{error}")
    seconds = {name: next((metrics[key] for key in keys if key in metrics), 0.0) for name, keys in SHOWN.items()}
    stages = [f"{name} {spent:.1f}s" for name, spent in seconds.items() if spent]
    if stages:
        parts.append(", ".join(stages))
    if step:
        parts.append(f"left {int(left) // 60}:{int(left) % 60:02d}")
    return " | ".join(parts)


class _Estimate:
    """Seconds that the steps of this process take, without what comes before the first."""

    def __init__(self, total: int, done: int) -> None:
        self.total, self._first = total, done
        self._started: float | None = None

    def begin(self) -> None:
        """The loop has begun."""
        self._started = self._started or time.monotonic()

    def left(self, step: int) -> float:
        done = step - self._first
        if done == 0 or self._started is None:  # a validation before training
            self._started = time.monotonic()
        return (time.monotonic() - self._started) / done * (self.total - step) if done > 0 else 0.0


class SilentProgress:
    """Shows nothing."""

    def stage(self, text: str) -> None:
        del text

    def step(self, step: int, metrics: Mapping[str, float]) -> None:
        del step, metrics

    def note(self, text: str) -> None:
        del text

    def close(self) -> None:
        return


class PlainProgress:
    """A line per step on standard output, and one when a validation starts (it may take long), for logs and pipes."""

    def __init__(self, total: int, done: int) -> None:
        self._estimate = _Estimate(total, done)

    def stage(self, text: str) -> None:
        self._estimate.begin()
        if text.endswith("validation"):
            print(f"{text} ...", flush=True)

    def step(self, step: int, metrics: Mapping[str, float]) -> None:
        print(summary_line(step, self._estimate.total, metrics, self._estimate.left(step)), flush=True)

    def note(self, text: str) -> None:
        print(text, flush=True)

    def close(self) -> None:
        return


class RichProgress:
    """A live bar with the present stage, and a finished line per step above it."""

    def __init__(self, total: int, done: int) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as Bar

        self._estimate = _Estimate(total, done)
        self._bar = Bar(
            TextColumn("[bold]{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            transient=True,
        )
        self._task = self._bar.add_task("starting", total=total, completed=done)
        self._bar.start()

    def stage(self, text: str) -> None:
        self._estimate.begin()
        self._bar.update(self._task, description=text)

    def step(self, step: int, metrics: Mapping[str, float]) -> None:
        self._bar.console.print(
            summary_line(step, self._estimate.total, metrics, self._estimate.left(step)), markup=False, highlight=True
        )
        self._bar.update(self._task, completed=step)

    def note(self, text: str) -> None:
        self._bar.console.print(text, markup=False, highlight=False)

    def close(self) -> None:
        self._bar.stop()


def starting_line(engine: str, launcher: str, replicas: int) -> str:
    """What is said while engines and workers start, which may take minutes."""
    many = "" if replicas == 1 else f"{replicas} x "
    return f"starting rollout engine {many}{engine} (launcher {launcher}) ..."


def plain_kind(kind: str) -> bool:
    """Does this trainer.progress print lines? 'auto' does off a terminal."""
    return kind == "plain" or (kind == "auto" and not sys.stdout.isatty())


def make_progress(kind: str, total: int, done: int) -> Progress:
    """`kind` is trainer.progress; 'auto' draws on a terminal and prints lines elsewhere."""
    if kind == "off":
        return SilentProgress()
    return PlainProgress(total, done) if plain_kind(kind) else RichProgress(total, done)
