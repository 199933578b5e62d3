"""Real models: responses of a language model, and a diffusion transformer whose tokens are split over ranks."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch
from diffusers import SD3Transformer2DModel
from transformers import Qwen3ForCausalLM

from omni_backends.training.fsdp2.layout import Layout
from omni_backends.training.fsdp2.parallel import _check_sequence, enable_tensor_parallel
from omni_backends.training.fsdp2.shard import promote, units
from omni_backends.training.single.engine import SingleTrainEngine
from omni_portable.config.tiny import tiny_folder
from omni_portable.contracts import registry
from omni_portable.contracts.algorithm import TrainBatch
from omni_portable.contracts.errors import CapabilityError
from omni_portable.contracts.rollout import Extent
from tests.backends.training.test_train_tokens import algorithm, batch_of, draw, setup_for
from tests.support.engine_step import engine_step

STEPS = {"step_kind": "sde", "noise_level": 0.7, "window_mode": "fixed", "stochastic_steps": [0, 2]}


def assert_step(ours, theirs) -> None:
    assert ours.metrics.keys() == theirs.metrics.keys()
    for name, value in theirs.metrics.items():
        assert math.isclose(ours.metrics[name], value, rel_tol=1e-6, abs_tol=1e-6), name
    torch.testing.assert_close(ours.log_probs, theirs.log_probs, rtol=0, atol=1e-6, equal_nan=True)


def test_responses_of_a_language_model(start, tmp_path):
    rule = algorithm("grpo", kl_coef=0.1)
    setup = setup_for("qwen3", lora_rank=0, requires=rule.requires)
    setup.config.algorithm = {"name": "grpo"}
    setup.config.actor.world_size, setup.config.actor.micro_batch_size = 2, 3
    setup.config.actor.gradient_checkpointing, setup.config.device.threads = True, 1
    batch = batch_of(draw(setup, "qwen3"), weights=torch.tensor([1, 1, 0, 0, 0, 1, 1, 2.0]))
    one, engine = SingleTrainEngine(setup), start(setup)
    for policy in ("current", "reference"):
        ours, theirs = engine.log_probs(batch, policy), one.log_probs(batch, policy)
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-6, equal_nan=True)
    assert_step(engine.train_step(batch, rule), one.train_step(batch, rule))
    engine.export(tmp_path / "export")
    exported = dict(Qwen3ForCausalLM.from_pretrained(tmp_path / "export").named_parameters())
    trained = dict(engine.weights())
    assert trained.keys() == exported.keys()
    assert all(torch.equal(exported[name], tensor) for name, tensor in trained.items())


def test_tokens_of_a_sample_split_over_ranks(start):
    step = engine_step("flux", tiny_folder("flux"), Extent(32, 32), "flow_grpo", lora=4, algorithm_options=STEPS)
    setup = step.actor._setup
    setup.config.actor.world_size = setup.config.actor.sequence_parallel = 2
    setup.config.device.threads = 1
    spec = registry.spec("algorithm", "flow_grpo")
    rule = spec.load()(spec.options(**STEPS))
    batch = TrainBatch(step.trajectories, torch.linspace(-1, 1.3, len(step.trajectories)), seed=7)
    assert_step(start(setup).train_step(batch, rule), SingleTrainEngine(setup).train_step(batch, rule))


def test_models_without_a_plan_are_refused_with_a_reason():
    model = SimpleNamespace(config=SimpleNamespace(num_attention_heads=6), _cp_plan={})
    with pytest.raises(CapabilityError, match=r"does not divide the 6 attention heads"):
        _check_sequence(model, 4)  # type: ignore[arg-type]
    with torch.device("meta"):
        sd3 = SD3Transformer2DModel(
            num_layers=2, num_attention_heads=2, attention_head_dim=8, caption_projection_dim=16
        )
    with pytest.raises(CapabilityError, match="SD3Transformer2DModel has no plan for splitting its tokens"):
        _check_sequence(sd3, 2)
    mesh, adapter = SimpleNamespace(size=lambda: 2), SimpleNamespace(family="sd3")
    with pytest.raises(CapabilityError, match="family 'sd3' has no plan for splitting layers"):
        enable_tensor_parallel(adapter, sd3, mesh, lora=False)  # type: ignore[arg-type]
    adapter.tensor_parallel_plan = dict
    with pytest.raises(CapabilityError, match="a LoRA is added to"):
        enable_tensor_parallel(adapter, sd3, mesh, lora=True)  # type: ignore[arg-type]
    assert [type(unit).__name__ for unit in units(sd3)] == ["JointTransformerBlock"] * 2


def test_parameters_of_several_dtypes_cannot_train_together():
    module = torch.nn.Sequential(torch.nn.Linear(2, 2).to(torch.bfloat16), torch.nn.LayerNorm(2))
    with pytest.raises(CapabilityError, match="2 of 4 trained parameters stay in float32"):
        promote(module)
    module[1].requires_grad_(False)
    assert set(promote(module).values()) == {torch.bfloat16}
    assert module[0].weight.dtype == torch.float32


def test_groups_of_processes():
    layout = Layout(2, sequence=2)
    assert [layout.data_rank(rank) for rank in range(4)] == [0, 0, 1, 1]
    assert [layout.leads(rank) for rank in range(4)] == [True, False, True, False]
