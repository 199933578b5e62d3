"""The train engine with a real transformer (tiny SD3), the native rollout engine and Flow-GRPO."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from omni_backends.rollout.native.engine import NativeRolloutEngine
from omni_backends.training.single.engine import SingleTrainEngine
from omni_portable.algorithms.flow_grpo.algorithm import FlowGRPO
from omni_portable.algorithms.flow_grpo.options import FlowGRPOOptions
from omni_portable.config.schema import RunConfig
from omni_portable.contracts import registry
from omni_portable.contracts.algorithm import Requires, TrainBatch
from omni_portable.contracts.model import ModelLoad
from omni_portable.contracts.rollout import Extent, RolloutRequest, Schedule, Trajectory
from omni_portable.models.sd3.tiny import build_tiny_sd3
from omni_portable.models.setup import EngineSetup
from tests.backends.training.toy import assert_equal, snapshot


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("sd3")
    return build_tiny_sd3(path, dual_attention_layers=(0,), qk_norm="rms_norm")


class Parts:
    """One run's algorithm, rollout engine and train engine, built as a launcher would."""

    def __init__(
        self,
        folder: Path,
        *,
        lora: int = 0,
        guidance: float = 1.0,
        kl: float = 0.0,
        kind: str = "sde",
        dtype: torch.dtype = torch.float32,
        **actor,
    ):
        config = RunConfig()
        config.model.family, config.model.path = "sd3", str(folder)
        config.model.lora.rank = lora
        config.rollout.max_num_seqs, config.rollout.guidance_scale = 4, guidance
        config.actor.lr = 1e-3
        for name, value in actor.items():
            setattr(config.actor, name, value)
        options = FlowGRPOOptions(
            step_kind=kind, noise_level=0.8, window_mode="fixed", stochastic_steps=[0, 1, 3], clip_ratio=0.1, kl_coef=kl
        )
        self.algorithm = FlowGRPO(options)
        device = registry.load("device", "cpu")()
        load = ModelLoad(folder, torch.device("cpu"), dtype)
        setup = EngineSetup(config, device, load, self.algorithm.requires)
        self.config, self.setup = config, setup
        self.rollout = NativeRolloutEngine(setup)
        self.actor = SingleTrainEngine(setup)

    def requests(self, count: int = 6, seed: int = 3) -> list[RolloutRequest]:
        schedule: Schedule = self.actor._adapter.schedule(5, Extent(16, 16))
        plan = self.algorithm.sampling_plan(schedule, seed)
        return [
            RolloutRequest(
                request_id=f"r{i}",
                group_id=f"g{i // 3}",
                prompt_id=f"p{i // 3}",
                sample_index=i % 3,
                seed=seed,
                prompt=f"number {i // 3}",
                height=16,
                width=16,
                schedule=schedule,
                plan=plan,
                guidance_scale=self.config.rollout.guidance_scale,
            )
            for i in range(count)
        ]

    def trajectories(self, count: int = 6, seed: int = 3) -> list[Trajectory]:
        return asyncio.run(self.rollout.generate(self.requests(count, seed))).trajectories

    def batch(self, trajectories: Sequence[Trajectory]) -> TrainBatch:
        rewards = torch.tensor([float(t.final_latents.mean()) for t in trajectories])
        groups = [t.request.group_id for t in trajectories]
        return TrainBatch(list(trajectories), self.algorithm.advantages(rewards, groups))

    def sync(self, version: int) -> None:
        self.rollout.pause()
        self.rollout.update_weights(self.actor.weights(), version)
        self.rollout.resume()


@pytest.mark.parametrize("lora", [0, 4])
@pytest.mark.parametrize("kind", ["sde", "cps", "dance_sde"])
@pytest.mark.parametrize("guidance", [1.0, 4.5])
def test_ratio_is_exactly_one_on_policy_before_and_after_a_weight_sync(folder, lora: int, kind: str, guidance: float):
    parts = Parts(folder, lora=lora, kind=kind, guidance=guidance)
    for version in (1, 2):
        trajectories = parts.trajectories(seed=version)
        recorded = torch.stack([t.log_probs for t in trajectories])
        result = parts.actor.train_step(parts.batch(trajectories), parts.algorithm)
        assert torch.equal(result.log_probs, recorded)
        assert result.metrics["actor/ratio_max_dev"] == 0.0
        assert result.metrics["actor/grad_norm"] > 0.0
        parts.sync(version)
        assert parts.rollout.weights_checksum() == parts.actor.weights_checksum()
    assert not torch.equal(parts.actor.log_probs(parts.batch(trajectories)), recorded)


@pytest.mark.parametrize("lora", [0, 4])
def test_ratio_is_exactly_one_in_bf16_too(folder, lora: int):
    parts = Parts(folder, lora=lora, guidance=4.5, dtype=torch.bfloat16)
    for version in (1, 2):
        trajectories = parts.trajectories(seed=version)
        result = parts.actor.train_step(parts.batch(trajectories), parts.algorithm)
        assert torch.equal(result.log_probs, torch.stack([t.log_probs for t in trajectories]))
        parts.sync(version)


@pytest.mark.parametrize("lora", [0, 4])
@pytest.mark.parametrize("checkpointing", [False, True])
def test_log_probs_are_the_bits_of_the_training_forward(folder, lora: int, checkpointing: bool):
    parts = Parts(folder, lora=lora, guidance=2.0, gradient_checkpointing=checkpointing)
    batch = parts.batch(parts.trajectories())
    parts.actor.train_step(batch, parts.algorithm)
    scored = parts.actor.log_probs(batch)
    assert torch.equal(parts.actor.train_step(batch, parts.algorithm).log_probs, scored)
    assert parts.actor._module.is_gradient_checkpointing == checkpointing


@pytest.mark.parametrize("lora", [0, 4])
def test_updates_do_not_depend_on_the_micro_batch_split(folder, lora: int):
    found = []
    for size in (6, 1, 4):
        parts = Parts(folder, lora=lora, micro_batch_size=size, grad_clip=0.0)
        batch = parts.batch(parts.trajectories())
        parts.actor._optimizer.step = lambda norm, p=parts: found.append(
            {n: m.grad.clone() for n, m in p.actor._optimizer.masters.items() if m.grad is not None}
        )
        parts.actor.train_step(batch, parts.algorithm)
    for other in found[1:]:
        assert other.keys() == found[0].keys()
        for name, gradient in other.items():
            torch.testing.assert_close(gradient, found[0][name], atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize("lora", [0, 4])
def test_the_reference_kl_is_zero_at_first_and_grows(folder, lora: int):
    parts = Parts(folder, lora=lora, kl=0.1)
    assert parts.algorithm.requires == Requires(reference_policy=True)
    batch = parts.batch(parts.trajectories())
    kl = [parts.actor.train_step(batch, parts.algorithm).metrics["actor/kl_loss"] for _ in range(3)]
    assert kl[0] == 0.0
    assert 0.0 < kl[1] < kl[2]


@pytest.mark.parametrize("lora", [0, 4])
def test_resume_equals_the_uninterrupted_run(folder, tmp_path: Path, lora: int):
    parts, resumed = (Parts(folder, lora=lora, ema_decay=0.9, warmup_steps=4) for _ in range(2))
    batches = [parts.batch(parts.trajectories(seed=seed)) for seed in range(5)]
    for batch in batches[:3]:
        parts.actor.train_step(batch, parts.algorithm)
    parts.actor.save(tmp_path)
    resumed.actor.load(tmp_path)
    for batch in batches[3:]:
        assert (
            resumed.actor.train_step(batch, parts.algorithm).metrics
            == parts.actor.train_step(batch, parts.algorithm).metrics
        )
    for policy in ("current", "ema"):
        assert resumed.actor.weights_checksum(policy) == parts.actor.weights_checksum(policy)


@pytest.mark.parametrize("lora", [0, 4])
def test_sleep_between_steps_changes_no_bit(folder, lora: int):
    through, slept = (Parts(folder, lora=lora, ema_decay=0.9, kl=0.1) for _ in range(2))
    batch = through.batch(through.trajectories())
    for parts in (through, slept):
        parts.actor.train_step(batch, parts.algorithm)
    held = _weight_bytes(slept)
    assert held > 0
    slept.actor.sleep()
    assert _weight_bytes(slept) == 0
    slept.actor.wake()
    slept.actor.sleep(tags=("optimizer",))
    slept.sync(1)
    slept.actor.sleep(tags=("weights",))
    slept.actor.wake()
    for parts in (through, slept):
        parts.actor.train_step(batch, parts.algorithm)
    assert _weight_bytes(slept) == held
    for policy in ("current", "ema"):
        assert slept.actor.weights_checksum(policy) == through.actor.weights_checksum(policy)


def _weight_bytes(parts: Parts) -> int:
    return sum(tensor.untyped_storage().nbytes() for tensor in parts.actor._policies.tensors("current").values())


def _forward(transformer: torch.nn.Module, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    config = transformer.config
    with torch.no_grad():
        return transformer(
            hidden_states=torch.randn(2, config.in_channels, 8, 8, generator=generator),
            timestep=torch.tensor([800.0, 300.0]),
            encoder_hidden_states=torch.randn(2, 5, config.joint_attention_dim, generator=generator),
            pooled_projections=torch.randn(2, config.pooled_projection_dim, generator=generator),
            return_dict=False,
        )[0]


def _base(folder: Path) -> torch.nn.Module:
    from diffusers import SD3Transformer2DModel

    return SD3Transformer2DModel.from_pretrained(folder, subfolder="transformer").eval()


@pytest.fixture
def trained_lora(folder: Path) -> Parts:
    parts = Parts(folder, lora=4, ema_decay=0.5, lr=0.05)
    batch = parts.batch(parts.trajectories())
    for _ in range(3):
        parts.actor.train_step(batch, parts.algorithm)
    return parts


@pytest.mark.parametrize("policy", ["current", "ema"])
def test_a_lora_export_loads_in_peft_and_in_diffusers(folder, tmp_path: Path, trained_lora: Parts, policy: str):
    from peft import PeftModel
    from safetensors.torch import load_file

    trained_lora.actor.export(tmp_path, policy)
    with torch.no_grad(), trained_lora.actor._policies.running(policy):
        expected = _forward(trained_lora.actor._module)
    plain = _forward(_base(folder))
    assert float((expected - plain).abs().max()) > 1e-3
    by_peft = PeftModel.from_pretrained(_base(folder), tmp_path)
    torch.testing.assert_close(_forward(by_peft.base_model.model), expected, atol=1e-6, rtol=1e-5)
    config = json.loads((tmp_path / "adapter_config.json").read_text())
    assert (config["r"], config["lora_alpha"], config["base_model_name_or_path"]) == (4, 8.0, str(folder))
    by_diffusers = _base(folder)
    by_diffusers.load_lora_adapter(str(tmp_path), weight_name="pytorch_lora_weights.safetensors")
    torch.testing.assert_close(_forward(by_diffusers), expected, atol=1e-6, rtol=1e-5)
    assert_equal(
        {k.removeprefix("base_model.model."): t for k, t in load_file(tmp_path / "adapter_model.safetensors").items()},
        snapshot(dict(trained_lora.actor.weights(policy))),
    )


def test_a_lora_export_loads_into_the_pipeline(folder, tmp_path: Path, trained_lora: Parts):
    from diffusers import StableDiffusion3Pipeline

    trained_lora.actor.export(tmp_path)
    pipeline = StableDiffusion3Pipeline.from_pretrained(folder, text_encoder_3=None, tokenizer_3=None)
    pipeline.load_lora_weights(tmp_path)
    torch.testing.assert_close(
        _forward(pipeline.transformer), _forward(trained_lora.actor._module), atol=1e-6, rtol=1e-5
    )


@pytest.mark.parametrize("policy", ["current", "ema"])
def test_a_full_export_is_a_diffusers_transformer(folder, tmp_path: Path, policy: str):
    from diffusers import SD3Transformer2DModel

    parts = Parts(folder, ema_decay=0.5, lr=0.01)
    parts.actor.train_step(parts.batch(parts.trajectories()), parts.algorithm)
    parts.actor.export(tmp_path / "out", policy)
    loaded = SD3Transformer2DModel.from_pretrained(tmp_path / "out")
    found = {name: tensor for name, tensor in loaded.named_parameters()}
    assert_equal(snapshot(found), snapshot(dict(parts.actor.weights(policy))))
    assert parts.actor.weights_checksum("ema") != parts.actor.weights_checksum()
