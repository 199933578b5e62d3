"""Roles of a run whose rollout engines do not take some weight updates, in whatever process they are built.

In a folder `faults` beside the run directory lie files whose names are policy versions. The first engine that is to
apply such a version takes the file away and breaks off after the first tensor.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from omni_portable.contracts.errors import WeightSyncError
from omni_portable.contracts.lifecycle import Ack
from omni_portable.contracts.rollout import RolloutEngine
from omni_portable.contracts.weights import WeightStream
from omni_portable.models.setup import EngineSetup
from omni_portable.trainer import roles
from omni_portable.trainer.roles import build_actor, build_reward
from tests.e2e.rundirs import metrics

__all__ = [
    "AGAIN",
    "HERE",
    "RUN",
    "build_actor",
    "build_reward",
    "build_rollout",
    "prepare",
    "unused",
    "without_versions",
]

HERE = __name__
RUN = ("rollout.max_num_seqs=2", "data.validation=''", "trainer.save_interval=1", "trainer.resume=auto")
"""A checkpoint after each step, and nothing that only a run's last step logs."""
AGAIN = "the weights are sent again, 1 more times at most"
"""What a run says with trainer.sync_attempts=2."""


def prepare(run_dir: Path, *versions: int) -> None:
    """Have one replica fail at each of these versions."""
    folder = run_dir.parent / "faults"
    folder.mkdir(exist_ok=True)
    for version in versions:
        (folder / str(version)).touch()


def unused(run_dir: Path) -> list[str]:
    """Versions at which no replica has failed."""
    return sorted(path.name for path in (run_dir.parent / "faults").iterdir())


def without_versions(run_dir: Path) -> dict[int, dict[str, float]]:
    """Its metrics but for the policy version, in which an update that was sent twice counts twice."""
    return {step: {k: v for k, v in row.items() if k != "policy/version"} for step, row in metrics(run_dir).items()}


def build_rollout(config: Mapping[str, Any], setup: EngineSetup | None = None) -> RolloutEngine:
    """The recipe's own engine, which breaks where it is told to."""
    engine = roles.build_rollout(config, setup)
    faults = Path(config["trainer"]["run_dir"]).parent / "faults"
    update = engine.update_weights

    def fragile(stream: WeightStream, version: int) -> Ack:
        try:
            (faults / str(version)).unlink()
        except FileNotFoundError:
            return update(stream, version)
        return _broken(engine, lambda: update(stream, version))

    engine.update_weights = fragile  # type: ignore[method-assign]
    return engine


def _broken(engine: Any, update: Any) -> Any:
    from omni_backends.rollout.native import weights

    apply = weights.apply_tensors

    def breaking(module: Any, tensors: Any) -> None:
        if module is not engine._adapter.transformer:
            return apply(module, tensors)
        weights.apply_tensors = apply  # the old ones are put back by it
        first, second, *_ = tensors
        apply(module, {first: tensors[first]})
        raise WeightSyncError(f"the tensor '{second}' could not be written: no memory is left")

    weights.apply_tensors = breaking
    try:
        return update()
    finally:
        weights.apply_tensors = apply
