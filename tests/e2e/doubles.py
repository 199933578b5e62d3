"""Scorers that go wrong on purpose, registered as a package of their own would do it."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import EntryPoint
from pathlib import Path

from omni_portable.contracts import registry
from omni_portable.contracts.registry import PluginSpec
from omni_portable.contracts.reward import RewardOutput, RewardSample, ScorerRequirements


@dataclass(frozen=True)
class AtOptions:
    at: str = "step-2/"
    """Samples whose id starts like this go wrong."""
    word: str = ""
    """Only those whose prompt holds this word."""
    fill: str = ""
    """Folder whose disk is filled up."""


class Brightness:
    """Mean pixel value in [0, 1]: a reward that is always well."""

    name = "brightness"

    def __init__(self, options: AtOptions) -> None:
        self.options = options
        self.requires = ScorerRequirements(artifacts={"image": "image"})

    def score(self, batch: Sequence[RewardSample]) -> RewardOutput:
        return RewardOutput(scores=[self._one(sample) for sample in batch])

    def _one(self, sample: RewardSample) -> float:
        value = float(sample.artifacts["image"].data.double().mean()) / 255.0
        return self.wrong(sample, value) if self._hits(sample) else value

    def _hits(self, sample: RewardSample) -> bool:
        return sample.sample_id.startswith(self.options.at) and self.options.word in sample.prompt

    def wrong(self, sample: RewardSample, value: float) -> float:
        return value


class Undefined(Brightness):
    """NaN for the samples it is told to."""

    def wrong(self, sample: RewardSample, value: float) -> float:
        return math.nan


class Brittle(Brightness):
    """Raises for the samples it is told to."""

    def wrong(self, sample: RewardSample, value: float) -> float:
        raise RuntimeError(f"cannot look at {sample.prompt!r}")


class Hanging(Brightness):
    """Never comes back from the samples it is told to."""

    def wrong(self, sample: RewardSample, value: float) -> float:
        print("hanging", flush=True)
        threading.Event().wait()
        return value


class DiskFiller(Brightness):
    """Fills the disk when it meets the samples it is told to."""

    def wrong(self, sample: RewardSample, value: float) -> float:
        ballast = Path(self.options.fill) / "ballast"
        try:
            with open(ballast, "ab", buffering=0) as file:
                while file.write(b"x" * 65536) > 0:
                    pass
        except OSError:
            return value
        raise AssertionError("the disk never filled up")


SPECS = {
    name: PluginSpec(name, "test double", f"{__name__}:{cls.__name__}", AtOptions, {"artifacts": {"image": "image"}})
    for name, cls in {
        "brightness": Brightness,
        "undefined": Undefined,
        "brittle": Brittle,
        "filler": DiskFiller,
        "hanging": Hanging,
    }.items()
}
BRIGHTNESS, UNDEFINED, BRITTLE, FILLER, HANGING = SPECS.values()


def register(setitem: Callable[[dict, str, EntryPoint], None]) -> None:
    """Make every scorer above a registered plugin; `setitem` is monkeypatch's."""
    for name in SPECS:
        point = EntryPoint(name, f"{__name__}:{name.upper()}", registry.GROUPS["reward"])
        setitem(registry._entry_points("reward"), name, point)


def installed(folder: Path) -> Path:
    """The same for other processes: a package in a folder that belongs into their PYTHONPATH."""
    info = folder / "doubles-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: doubles\nVersion: 1.0\n")
    points = [f"{name} = {__name__}:{name.upper()}" for name in SPECS]
    (info / "entry_points.txt").write_text("\n".join([f"[{registry.GROUPS['reward']}]", *points, ""]))
    return folder
