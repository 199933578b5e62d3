"""Validation on held-out prompts: always the same prompts, seeds and sampler, so that before and after compare."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from omni_portable.contracts.media import MediaArtifact
from omni_portable.contracts.rollout import RolloutRequest, Trajectory
from omni_portable.data.media import image_grid, write_image
from omni_portable.reward.compose import ComposedReward
from omni_portable.trainer.rundir import disk_errors, write_text
from omni_portable.trainer.stages import RewardStage, RolloutStage


@dataclass(frozen=True)
class ValidationResult:
    """Mean total reward over N samples, its standard error, and the scores in request order."""

    mean: float
    stderr: float
    scores: tuple[float, ...]
    metrics: Mapping[str, float]


def mean_and_stderr(values: Sequence[float]) -> tuple[float, float]:
    """Mean, and the unbiased standard deviation over sqrt(N) (0 for a single value)."""
    count = len(values)
    mean = sum(values) / count
    if count == 1:
        return mean, 0.0
    variance = sum((v - mean) ** 2 for v in values) / (count - 1)
    return mean, math.sqrt(variance / count)


class ValidationStage:
    """Runs the validation requests and writes images, scores and a grid under ``validation/step_NNNNNN``."""

    def __init__(
        self, rollout: RolloutStage, reward: RewardStage, requests: list[RolloutRequest], root: Path, images: int
    ) -> None:
        self._rollout, self._reward = rollout, reward
        self._requests, self._root, self._images = requests, root, images

    async def run(self, step: int) -> ValidationResult:
        trajectories = await self._rollout.run(self._requests)
        reward = await self._reward.run(trajectories)
        failed = set(reward.failed)
        kept = [i for i, t in enumerate(trajectories) if t.request.request_id not in failed]
        mean, stderr = mean_and_stderr([reward.total[i] for i in kept])
        metrics = {
            "validation/reward_mean": mean,
            "validation/reward_stderr": stderr,
            "validation/count": float(len(kept)),
        }
        for name, values in reward.components.items():
            metrics[f"validation/{name}"] = sum(values[i] for i in kept) / len(kept)
        self._write(step, trajectories, reward)
        return ValidationResult(mean, stderr, tuple(reward.total[i] for i in kept), metrics)

    def _write(self, step: int, trajectories: Sequence[Trajectory], reward: ComposedReward) -> None:
        folder = self._root / f"step_{step:06d}"
        with disk_errors(folder):
            (folder / "images").mkdir(parents=True, exist_ok=True)
            lines, pictures, captions = [], [], []
            for index, trajectory in enumerate(trajectories):
                image = _first_image(trajectory.artifacts)
                name = f"images/{index:04d}.png" if image is not None and index < self._images else None
                if image is not None and name is not None:
                    write_image(image, folder / name)
                    pictures.append(image)
                    captions.append(f"{trajectory.request.prompt}\n{reward.total[index]:.2f}")
                lines.append(json.dumps(_sample_row(index, trajectory, reward, name), sort_keys=True, default=str))
            write_text(folder / "samples.jsonl", "\n".join(lines) + "\n")
            if pictures:
                image_grid(pictures, captions).save(folder / "grid.png")


def _first_image(artifacts: Mapping[str, MediaArtifact]) -> MediaArtifact | None:
    return next((a for _, a in sorted(artifacts.items()) if a.modality == "image"), None)


def _sample_row(index: int, trajectory: Trajectory, reward: ComposedReward, image: str | None) -> dict[str, object]:
    return {
        "index": index,
        "prompt_id": trajectory.request.prompt_id,
        "prompt": trajectory.request.prompt,
        "sample_index": trajectory.request.sample_index,
        "score": reward.total[index],
        "components": {name: values[index] for name, values in reward.components.items()},
        "details": reward.details[index],
        "image": image,
    }
