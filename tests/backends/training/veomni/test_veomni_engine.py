"""Training in modules that VeOmni really wraps, on this CPU, equals the single-process engine."""

from __future__ import annotations

import asyncio
import dataclasses
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers import QwenImageTransformer2DModel

from omni_backends.rollout.native.engine import NativeRolloutEngine
from omni_backends.training.single.engine import SingleTrainEngine
from omni_backends.training.veomni.engine import VeOmniTrainEngine
from omni_backends.training.veomni.requirements import check_installed
from omni_portable.contracts import registry
from omni_portable.contracts.algorithm import TrainBatch
from omni_portable.contracts.rollout import Extent, RolloutRequest
from omni_portable.contracts.training import TrainEngine
from omni_portable.models.setup import EngineSetup
from tests.backends.training.test_train_tokens import algorithm, batch_of, draw, setup_for
from tests.backends.training.veomni.tiny import tiny_folder
from tests.support.engines import make_setup
from tests.support.vendor_packages import require_supported

require_supported(check_installed)

EXTENT = Extent(32, 32)


def language() -> tuple[EngineSetup, TrainBatch, Any]:
    """Seven responses: with micro-batches of two, one rank repeats."""
    rule = algorithm("grpo", kl_coef=0.1)
    setup = setup_for("qwen3", lora_rank=0, requires=rule.requires, max_num_seqs=2)
    return setup, batch_of(draw(setup, "qwen3", 7)), rule


def images(lora: int) -> tuple[EngineSetup, TrainBatch, Any]:
    """Four samples of Qwen-Image by prompts of different lengths."""
    rule = registry.load("algorithm", "flow_grpo")(registry.spec("algorithm", "flow_grpo").options(kl_coef=0.05))
    options = registry.spec("model", "qwen_image").options()
    setup = make_setup("qwen_image", tiny_folder("qwen_image"), lora_rank=lora, options=options, max_num_seqs=2)
    setup = dataclasses.replace(setup, requires=rule.requires)
    rollout = NativeRolloutEngine(setup)
    schedule = rollout._adapter.schedule(3, EXTENT)
    requests = [
        RolloutRequest(
            request_id=f"r{index}",
            group_id=f"g{index // 2}",
            prompt_id=f"p{index // 2}",
            sample_index=index % 2,
            seed=7,
            prompt=("a cat", "a much longer prompt")[index // 2],
            negative_prompt="",
            height=EXTENT.height,
            width=EXTENT.width,
            num_frames=1,
            frame_rate=0.0,
            schedule=schedule,
            plan=rule.sampling_plan(schedule, 7),
            guidance_scale=1.0,
        )
        for index in range(4)
    ]
    trajectories = list(asyncio.run(rollout.generate(requests)).trajectories)
    return setup, TrainBatch(trajectories, torch.tensor([1.0, -1.0, 0.5, -0.5]), seed=7), rule


@dataclasses.dataclass
class Case:
    """A setup for one process, and the keys that make it one for several."""

    setup: EngineSetup
    batch: TrainBatch
    rule: Any
    actor: dict[str, Any]
    exact: bool = True

    def start(self) -> VeOmniTrainEngine:
        actor = dataclasses.replace(self.setup.config.actor, engine="veomni", world_size=2, **self.actor)
        return VeOmniTrainEngine(
            dataclasses.replace(self.setup, config=dataclasses.replace(self.setup.config, actor=actor))
        )


def make(name: str) -> Case:
    if name == "language":
        return Case(*language(), {"options": {"export_own": True}})
    if name == "hybrid":  # two copies of a LoRA's base, in the host's memory, summed after every backward
        options = {"options": {"replicate": 2}, "offload": "cpu", "gradient_sync": "each", "sharding": "keep"}
        return Case(*images(lora=4), options)
    return Case(*images(lora=0), {"sequence_parallel": 2}, exact=False)


@pytest.fixture(scope="module", params=["language", "hybrid", "sequence"])
def running(request: pytest.FixtureRequest) -> Iterator[tuple[Case, VeOmniTrainEngine]]:
    case = make(request.param)
    case.setup.config.actor.ema_decay = 0.9
    engine = case.start()
    yield case, engine
    engine.close()


def test_steps_are_those_of_one_process(running, tmp_path):
    case, engine = running
    one = SingleTrainEngine(case.setup)
    assert isinstance(engine, TrainEngine)
    assert engine.weights_checksum() == one.weights_checksum()
    scored, expected = engine.log_probs(case.batch), one.log_probs(case.batch)
    torch.testing.assert_close(scored, expected, rtol=0, atol=0 if case.exact else 1e-6, equal_nan=True)
    for _ in range(2):
        theirs, ours = one.train_step(case.batch, case.rule), engine.train_step(case.batch, case.rule)
        assert ours.metrics.keys() == theirs.metrics.keys()
        for name, value in theirs.metrics.items():
            assert math.isclose(ours.metrics[name], value, rel_tol=5e-6, abs_tol=5e-6), name
        torch.testing.assert_close(ours.log_probs, theirs.log_probs, rtol=0, atol=1e-5, equal_nan=True)
    for policy in ("current", "ema"):
        mine, yours = dict(engine.weights(policy)), dict(one.weights(policy))
        assert list(mine) == list(yours)
        for name, tensor in yours.items():
            torch.testing.assert_close(mine[name], tensor, rtol=0, atol=1e-5)
    engine.save(tmp_path)
    saved = engine.weights_checksum()
    engine.train_step(case.batch, case.rule)
    assert engine.weights_checksum() != saved
    engine.load(tmp_path)
    assert engine.weights_checksum() == saved
    engine.sleep()
    engine.wake()
    assert engine.weights_checksum() == saved


def test_exports(running, tmp_path):
    case, engine = running
    engine.export(tmp_path)
    if case.setup.config.model.lora.rank:
        assert (tmp_path / "adapter_model.safetensors").is_file()
    elif case.setup.config.model.family == "qwen_image":
        loaded = QwenImageTransformer2DModel.from_pretrained(tmp_path).state_dict()
        assert all(torch.equal(loaded[name], tensor) for name, tensor in engine.weights())
    assert (tmp_path / "veomni" / "model.safetensors").is_file() == bool(
        case.actor.get("options", {}).get("export_own")
    )


def test_a_run_starts_from_weights_in_veomnis_layout(tmp_path: Path):
    from omni_backends.training.veomni.weights import write_weights

    case = make("language")
    one = SingleTrainEngine(case.setup)
    one.train_step(case.batch, case.rule)
    write_weights("qwen3", tmp_path, dict(one.weights()))
    case.actor = {"options": {"weights": str(tmp_path)}}
    engine = case.start()
    try:
        assert engine.weights_checksum() == one.weights_checksum()
    finally:
        engine.close()
