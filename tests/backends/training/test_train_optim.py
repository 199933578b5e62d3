from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from omni_backends.training.ema import Ema, PolicyCopy
from omni_backends.training.optim import MasterOptimizer
from omni_portable.config.schema import ActorConfig
from omni_portable.contracts.errors import ConfigError


def parameters(dtype: torch.dtype = torch.float32, seed: int = 0) -> dict[str, nn.Parameter]:
    generator = torch.Generator().manual_seed(seed)
    return {n: nn.Parameter(torch.randn(3, 2, generator=generator).to(dtype)) for n in ("a.weight", "b.weight")}


def test_it_is_torch_adamw_with_the_actors_settings():
    config = ActorConfig(lr=0.1, weight_decay=0.3, beta1=0.8, beta2=0.9, eps=1e-3, grad_clip=0.0)
    mine, theirs = parameters(), parameters()
    optimizer = MasterOptimizer(mine, config)
    expected = torch.optim.AdamW(theirs.values(), lr=0.1, betas=(0.8, 0.9), eps=1e-3, weight_decay=0.3)
    for step in range(4):
        for name in mine:
            mine[name].grad = torch.full((3, 2), 0.1 * step - 0.15)
            theirs[name].grad = mine[name].grad.clone()
        optimizer.step(optimizer.gradient_norm())
        expected.step()
    for name in mine:
        assert torch.equal(mine[name], theirs[name])
        assert mine[name].grad is None


def test_warm_up_is_linear_then_constant():
    own = parameters()
    optimizer = MasterOptimizer(own, ActorConfig(lr=0.8, warmup_steps=4))
    rates = []
    for _ in range(6):
        rates.append(optimizer.learning_rate())
        for parameter in own.values():
            parameter.grad = torch.ones(3, 2)
        optimizer.step(optimizer.gradient_norm())
        assert optimizer.adamw.param_groups[0]["lr"] == rates[-1]
    assert rates == pytest.approx([0.2, 0.4, 0.6, 0.8, 0.8, 0.8])
    assert MasterOptimizer(parameters(), ActorConfig(lr=0.8)).learning_rate() == 0.8


@settings(max_examples=25, deadline=None)
@given(scale=st.floats(1e-3, 1e3), clip=st.floats(0.01, 10.0))
def test_clipping_limits_the_norm_and_keeps_the_direction(scale: float, clip: float):
    own = parameters()
    optimizer = MasterOptimizer(own, ActorConfig(grad_clip=clip))
    before = {}
    for name, parameter in own.items():
        parameter.grad = torch.randn(3, 2, generator=torch.Generator().manual_seed(1)) * scale
        before[name] = parameter.grad.clone()
    norm = optimizer.gradient_norm()
    assert float(norm) == pytest.approx(float(torch.stack([g.square().sum() for g in before.values()]).sum().sqrt()))
    taken = {}
    optimizer.adamw.step = lambda: taken.update({n: p.grad.clone() for n, p in own.items()})
    optimizer.step(norm)
    factor = min(1.0, clip / float(norm))
    for name, gradient in taken.items():
        torch.testing.assert_close(gradient, before[name] * factor, rtol=1e-3, atol=1e-6)


def test_masters_of_narrow_parameters_are_separate_and_published():
    own = parameters(torch.bfloat16)
    optimizer = MasterOptimizer(own, ActorConfig(lr=1e-6, weight_decay=0.0))
    assert len(optimizer.separate_masters) == 2
    start = {name: master.detach().clone() for name, master in optimizer.masters.items()}
    sum((parameter.sum() for parameter in own.values()), torch.zeros(())).backward()
    assert all(parameter.grad is None for parameter in own.values())
    optimizer.step(optimizer.gradient_norm())
    for name, master in optimizer.masters.items():
        torch.testing.assert_close(start[name] - master, torch.full((3, 2), 1e-6), rtol=0.1, atol=1e-7)
        assert torch.equal(own[name], master.to(torch.bfloat16))


def test_state_comes_back_bit_for_bit_and_untouched_parameters_have_none():
    own = parameters()
    optimizer = MasterOptimizer(own, ActorConfig(lr=0.1))
    own["b.weight"].grad = torch.ones(3, 2)
    optimizer.step(optimizer.gradient_norm())
    assert optimizer.updated_names() == ["b.weight"]
    tensors = {key: tensor.clone() for key, tensor in optimizer.state_tensors().items()}
    assert {key: tuple(t.shape) for key, t in tensors.items()} == optimizer.expected_state(["b.weight"])
    other = {name: nn.Parameter(parameter.detach().clone()) for name, parameter in own.items()}
    resumed = MasterOptimizer(other, ActorConfig(lr=0.1))
    resumed.load_state(["b.weight"], tensors, 1)
    for engine, params in ((optimizer, own), (resumed, other)):
        for parameter in params.values():
            parameter.grad = torch.full((3, 2), 0.4)
        engine.step(engine.gradient_norm())
    assert resumed.steps_done == optimizer.steps_done == 2
    for name in own:
        assert torch.equal(own[name], other[name])


@settings(max_examples=25, deadline=None)
@given(decay=st.floats(0.01, 0.999), steps=st.integers(1, 5))
def test_the_average_follows_its_formula(decay: float, steps: int):
    generator = torch.Generator().manual_seed(steps)
    series = [{"w.x": torch.randn(4, generator=generator)} for _ in range(steps + 1)]
    ema = Ema(series[0], decay)
    expected = series[0]["w.x"].double()
    for tensors in series[1:]:
        ema.update(tensors)
        expected = decay * expected + (1 - decay) * tensors["w.x"].double()
    torch.testing.assert_close(ema.tensors()["w.x"].double(), expected, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("decay", [0.0, 1.0, -0.5, float("nan")])
def test_an_average_needs_a_decay_between_0_and_1(decay: float):
    with pytest.raises(ConfigError, match="actor.ema_decay"):
        Ema({"w": torch.zeros(1)}, decay)


def test_a_copy_does_not_follow_its_source_and_loads_exactly():
    source = {"w": torch.randn(3)}
    copy = PolicyCopy(source)
    kept = source["w"].clone()
    source["w"].add_(1.0)
    assert torch.equal(copy.tensors()["w"], kept)
    value = torch.tensor([0.1, -0.0, 1e-40])
    copy.load({"w": value})
    assert torch.equal(copy.tensors()["w"].view(torch.int32), value.view(torch.int32))
