"""Validation on held-out prompts: always the same prompts, seeds and sampler, so that before and after compare."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omni_portable.contracts.disk import disk_errors
from omni_portable.contracts.errors import RewardError
from omni_portable.contracts.tokens import AnyRequest, AnyTrajectory
from omni_portable.data.media import image_grid
from omni_portable.reward.compose import ComposedReward
from omni_portable.trainer.rollout_stage import RolloutStage
from omni_portable.trainer.rundir import write_text
from omni_portable.trainer.sample_files import SampleFiles, texts, write_inputs, write_sample
from omni_portable.trainer.stages import RewardStage


@dataclass(frozen=True)
class ValidationResult:
    """Mean total reward over the N samples that could be scored, its standard error, their scores in request order,
    and the picture that shows the first of them (None where the model makes neither images nor videos)."""

    mean: float
    stderr: float
    scores: tuple[float, ...]
    metrics: Mapping[str, float]
    grid: Path | None = None


def mean_and_stderr(values: Sequence[float]) -> tuple[float, float]:
    """Mean, and the unbiased standard deviation over sqrt(N) (0 for a single value)."""
    count = len(values)
    mean = sum(values) / count
    if count == 1:
        return mean, 0.0
    variance = sum((v - mean) ** 2 for v in values) / (count - 1)
    return mean, math.sqrt(variance / count)


class ValidationStage:
    """Runs the validation requests and writes media, scores and a grid under ``validation/step_NNNNNN``.

    Args:
        images: samples whose media are written; the scores of all are.
    """

    def __init__(
        self, rollout: RolloutStage, reward: RewardStage, requests: Sequence[AnyRequest], root: Path, images: int
    ) -> None:
        self._rollout, self._reward = rollout, reward
        self._requests, self._root, self._images = requests, root, images

    async def run(self, step: int) -> ValidationResult:
        """Draw, score and write down.

        Raises:
            RewardError: no sample could be scored.
        """
        trajectories = await self._rollout.run(self._requests)
        reward = await self._reward.run(trajectories)
        failed = set(reward.failed)
        kept = [i for i, t in enumerate(trajectories) if t.request.request_id not in failed]
        if not kept:
            first, why = next(iter(reward.errors.items()), ("", "unknown"))
            raise RewardError(
                f"validation at step {step}: none of the {len(trajectories)} samples could be scored; the first, "
                f"'{first}': {why}",
                remedy="mend the scorer; reward.on_error=drop_group leaves out single prompts, not all of them",
            )
        mean, stderr = mean_and_stderr([reward.total[i] for i in kept])
        metrics = {
            "validation/reward_mean": mean,
            "validation/reward_stderr": stderr,
            "validation/count": float(len(kept)),
        }
        for name, values in reward.components.items():
            metrics[f"validation/{name}"] = sum(values[i] for i in kept) / len(kept)
        grid = self._write(step, trajectories, reward)
        return ValidationResult(mean, stderr, tuple(reward.total[i] for i in kept), metrics, grid)

    def _write(self, step: int, trajectories: Sequence[AnyTrajectory], reward: ComposedReward) -> Path | None:
        folder = self._root / f"step_{step:06d}"
        with disk_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
            lines, pictures, captions = [], [], []
            for index, trajectory in enumerate(trajectories):
                shown = index < self._images
                files = write_sample(trajectory.artifacts, folder, index) if shown else SampleFiles()
                given = write_inputs(trajectory.request.media, folder, index) if shown else {}
                if files.picture is not None:
                    pictures.append(files.picture)
                    captions.append(f"{trajectory.request.prompt}\n{_score_text(reward.total[index])}")
                row = strict(_sample_row(index, trajectory, reward, files, given))
                lines.append(json.dumps(row, sort_keys=True, default=str, allow_nan=False))
            write_text(folder / "samples.jsonl", "\n".join(lines) + "\n")
            if not pictures:
                return None
            image_grid(pictures, captions).save(folder / "grid.png")
            return folder / "grid.png"


def strict(value: Any) -> Any:
    """Plain data as strict JSON can hold it: a number that is not finite (a sample without a score) becomes null."""
    if isinstance(value, Mapping):
        return {str(key): strict(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [strict(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _score_text(score: float) -> str:
    return f"{score:.2f}" if math.isfinite(score) else "no score"


def _sample_row(
    index: int, trajectory: AnyTrajectory, reward: ComposedReward, files: SampleFiles, given: Mapping[str, str]
) -> dict[str, object]:
    """One row of samples.jsonl; 'inputs' and 'media' (name -> file) and 'texts' (name -> text) only where there are
    any."""
    said = texts(trajectory.artifacts)
    return {
        **({"texts": said} if said else {}),
        **({"media": dict(files.media)} if files.media else {}),
        **({"inputs": dict(given)} if given else {}),
        "index": index,
        "prompt_id": trajectory.request.prompt_id,
        "prompt": trajectory.request.prompt,
        "sample_index": trajectory.request.sample_index,
        "score": reward.total[index],
        "components": {name: values[index] for name, values in reward.components.items()},
        "details": reward.details[index],
        "image": files.image,
    }
