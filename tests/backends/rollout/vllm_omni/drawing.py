"""The same requests through vLLM-Omni, the native engine and the actor."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from omni_backends.rollout.native.engine import NativeRolloutEngine
from omni_backends.rollout.vllm_omni.engine import VllmOmniEngine
from omni_backends.training.single.engine import SingleTrainEngine
from omni_portable.config.tiny import tiny_folder
from omni_portable.contracts import registry
from omni_portable.contracts.algorithm import TrainBatch
from omni_portable.contracts.lifecycle import EngineState
from omni_portable.contracts.rollout import Extent, RolloutRequest, SamplingPlan, Trajectory
from omni_portable.models.setup import EngineSetup
from omni_portable.models.weights import make_stream
from tests.support.engines import make_setup

EXTENTS = {"sd3": Extent(64, 64), "wan22": Extent(32, 32, 5, 8.0)}
PROMPTS = ("a cat", "a much longer prompt")
STEPS, STOCHASTIC = 4, (0, 1, 2)


@dataclass
class Pair:
    """Engines of one setup; the versions of the two rollout engines go up together."""

    setup: EngineSetup
    engine: VllmOmniEngine
    native: NativeRolloutEngine
    actor: SingleTrainEngine
    extent: Extent
    guidance: float

    @classmethod
    def start(
        cls,
        family: str,
        *,
        lora: int = 4,
        pack: int = 8,
        guidance: float = 3.0,
        options: Sequence[tuple[str, Any]] = (),
    ) -> Pair:
        folder = tiny_folder(family)
        made = registry.spec("model", family).options()
        setup = make_setup(family, folder, lora_rank=lora, options=made, max_num_seqs=pack)
        setup.config.rollout.guidance_scale = guidance
        setup.config.actor.lr = 0.01
        native, actor = NativeRolloutEngine(setup), SingleTrainEngine(setup)
        setup.config.rollout.options = dict(options)
        engine = VllmOmniEngine(setup)
        return cls(setup, engine, native, actor, EXTENTS[family], guidance)

    def fresh(self) -> Pair:
        """Running, whatever a test left behind."""
        if self.engine.health().state is EngineState.ASLEEP:
            self.engine.wake()
        if self.engine.health().state is EngineState.PAUSED:
            self.engine.resume()
        return self

    def requests(self, count: int = 4, first: int = 0, **changes: Any) -> list[RolloutRequest]:
        schedule = self.native._adapter.schedule(changes.pop("steps", STEPS), self.extent)
        plan = SamplingPlan("sde", 0.7, STOCHASTIC)
        return [
            RolloutRequest(
                **{
                    "request_id": f"r{index}",
                    "group_id": f"g{index // 2}",
                    "prompt_id": f"p{index // 2}",
                    "sample_index": index % 2,
                    "seed": 7,
                    "prompt": PROMPTS[index // 2 % 2],
                    "negative_prompt": "blurred",
                    "height": self.extent.height,
                    "width": self.extent.width,
                    "num_frames": self.extent.num_frames,
                    "frame_rate": self.extent.frame_rate,
                    "schedule": schedule,
                    "plan": plan,
                    "guidance_scale": self.guidance,
                    **changes,
                }
            )
            for index in range(first, first + count)
        ]

    def draw(self, requests: Sequence[RolloutRequest]) -> list[Trajectory]:
        return drawn(self.engine, requests)

    def replayed(self, trajectories: Sequence[Trajectory]) -> torch.Tensor:
        """(N, W) log-probs by the actor."""
        return self.actor.log_probs(TrainBatch(trajectories, torch.zeros(len(trajectories))))

    def move(self) -> None:
        """Change every trained tensor of the actor by a known amount, so that weights matter."""
        with torch.no_grad():
            for index, (_, tensor) in enumerate(self.actor.weights()):
                generator = torch.Generator().manual_seed(index)
                tensor.add_(0.05 * torch.randn(tensor.shape, generator=generator).to(tensor))

    def sync(self) -> int:
        """The actor's weights in both rollout engines; the new version."""
        version = self.engine.health().policy_version + 1
        for engine in (self.engine, self.native):
            if engine.health().state is EngineState.RUNNING:
                engine.pause()
            engine.update_weights(self.actor.weights(), version)
            engine.resume()
        return version

    def stream(self, **changed: torch.Tensor) -> Any:
        """The actor's weights with some tensors replaced."""
        stream = self.actor.weights()
        tensors = {name: tensor.clone() for name, tensor in stream} | changed
        return make_stream(stream.manifest.mode, tensors.items(), stream.manifest.lora)


def drawn(engine: Any, requests: Sequence[RolloutRequest]) -> list[Trajectory]:
    return list(asyncio.run(engine.generate(requests)).trajectories)


def largest_gap(left: Sequence[Trajectory], right: Sequence[Trajectory], field: str = "final_latents") -> float:
    return max((getattr(a, field) - getattr(b, field)).abs().max().item() for a, b in zip(left, right, strict=True))
