"""One RL step of a family on a tiny folder: rollout, replay, update, weight sync; built as a launcher would."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from omni_backends.rollout.native.engine import NativeRolloutEngine
from omni_backends.training.single.engine import SingleTrainEngine
from omni_portable.config.schema import ActorConfig, LoraConfig, ModelConfig, RolloutConfig, RunConfig
from omni_portable.contracts import registry
from omni_portable.contracts.algorithm import TrainBatch
from omni_portable.contracts.media import MediaArtifact
from omni_portable.contracts.model import ModelLoad
from omni_portable.contracts.rollout import Extent, RolloutRequest, Trajectory
from omni_portable.contracts.training import StepResult
from omni_portable.models.setup import EngineSetup


@dataclass
class Step:
    """What one step left behind."""

    trajectories: list[Trajectory]
    result: StepResult
    actor: SingleTrainEngine
    rollout: NativeRolloutEngine

    def again(self) -> list[Trajectory]:
        """The same requests under the weights that the engine holds now."""
        return generate(self.rollout, [trajectory.request for trajectory in self.trajectories])


def engine_step(
    family: str,
    folder: Path,
    extent: Extent,
    algorithm: str,
    *,
    options: Mapping[str, Any] | None = None,
    algorithm_options: Mapping[str, Any] | None = None,
    prompts: Sequence[str] = ("a cat", "a much longer prompt"),
    media: Mapping[str, MediaArtifact] | None = None,
    steps: int = 4,
    guidance: float = 1.0,
    lora: int = 4,
    pack: int = 4,
) -> Step:
    """Two samples per prompt, one optimizer step, and the new weights in the rollout engine.

    Args:
        algorithm_options: keys of the algorithm's options dataclass.
        media: input media of every prompt.
        lora: rank; 0 trains all weights.
        pack: samples per forward, in the rollout and in the actor.
    """
    spec, chosen = registry.spec("algorithm", algorithm), registry.spec("model", family)
    policy = spec.load()(spec.options(**(algorithm_options or {})))
    config = RunConfig(
        model=ModelConfig(family=family, path=str(folder), lora=LoraConfig(rank=lora)),
        rollout=RolloutConfig(max_num_seqs=pack, guidance_scale=guidance),
        actor=ActorConfig(lr=0.01),
    )
    load = ModelLoad(folder, torch.device("cpu"), torch.float32, options=chosen.options(**(options or {})))
    setup = EngineSetup(config, registry.load("device", "cpu")(), load, policy.requires)
    rollout, actor = NativeRolloutEngine(setup), SingleTrainEngine(setup)
    schedule = rollout._adapter.schedule(steps, extent)
    requests = [
        RolloutRequest(
            request_id=f"r{index}",
            group_id=f"g{index // 2}",
            prompt_id=f"p{index // 2}",
            sample_index=index % 2,
            seed=7,
            prompt=prompts[index // 2],
            negative_prompt="blurred",
            height=extent.height,
            width=extent.width,
            num_frames=extent.num_frames,
            frame_rate=extent.frame_rate,
            schedule=schedule,
            plan=policy.sampling_plan(schedule, 7),
            guidance_scale=guidance,
            media=media or {},
        )
        for index in range(2 * len(prompts))
    ]
    trajectories = generate(rollout, requests)
    rewards = torch.tensor([float(t.final_latents.mean()) for t in trajectories])
    groups = [t.request.group_id for t in trajectories]
    result = actor.train_step(TrainBatch(trajectories, policy.advantages(rewards, groups), seed=7), policy)
    rollout.pause()
    rollout.update_weights(actor.weights(), 1)
    rollout.resume()
    return Step(trajectories, result, actor, rollout)


def generate(engine: NativeRolloutEngine, requests: Sequence[RolloutRequest]) -> list[Trajectory]:
    return list(asyncio.run(engine.generate(requests)).trajectories)


def assert_ratio_is_one(step: Step) -> None:
    """The actor's replay gave the rollout's log-probs bit for bit, and the update then changed the policy."""
    recorded = torch.stack([t.log_probs for t in step.trajectories])
    assert bool(torch.isfinite(recorded).all())
    assert torch.equal(step.result.log_probs, recorded)
    assert step.result.metrics["actor/ratio_max_dev"] == 0.0
    assert_moved(step)


def assert_moved(step: Step) -> None:
    """The gradient was finite and not zero, and the synced engine draws other samples."""
    assert 0.0 < step.result.metrics["actor/grad_norm"] < float("inf")
    assert step.rollout.weights_checksum() == step.actor.weights_checksum()
    before, after = step.trajectories, step.again()
    assert not all(torch.equal(a.final_latents, b.final_latents) for a, b in zip(before, after, strict=True))
