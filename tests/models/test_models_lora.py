"""LoRA injection: the same on both sides, counted, and read back from the layers."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from omni_portable.config.schema import LoraConfig
from omni_portable.contracts.errors import ConfigError, WeightSyncError
from omni_portable.models.lora import (
    bound_lora_modules,
    inject_lora,
    lora_checksums,
    lora_layers,
    lora_named_tensors,
    trainable_named_tensors,
    verify_lora,
)
from omni_portable.models.lora_file import inject_configured_lora
from omni_portable.models.weights import apply_tensors, make_stream, named_tensors, receive


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.to_q, self.to_k = nn.Linear(8, 8), nn.Linear(8, 8)
        self.to_out = nn.ModuleList([nn.Linear(8, 8), nn.Dropout(0.0)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.to_out[1](self.to_out[0](self.to_q(x) * self.to_k(x)))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attn, self.attn2 = Attention(), Attention()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.attn2(self.attn(x))


def model(dtype: torch.dtype = torch.float32) -> nn.Sequential:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(Block(), Block()).to(dtype)


def inject(module: nn.Module, **changes):
    arguments = {"rank": 2, "alpha": 4.0, "targets": ("attn.to_q", "attn.to_out.0"), "seed": 5} | changes
    return inject_lora(module, **arguments)


def test_targets_are_suffixes_at_dots():
    module = model()
    info = inject(module)
    assert info.expected_modules == bound_lora_modules(module) == 4
    assert [name for name, _ in lora_layers(module)] == [
        "0.attn.to_q",
        "0.attn.to_out.0",
        "1.attn.to_q",
        "1.attn.to_out.0",
    ]


def test_only_the_matrices_are_trainable():
    module = model()
    inject(module)
    names = [name for name, _ in trainable_named_tensors(module)]
    assert names == [name for name, _ in lora_named_tensors(module)]
    assert names[:2] == ["0.attn.to_q.lora_A.weight", "0.attn.to_q.lora_B.weight"]
    assert len(names) == 8


def test_names_of_the_base_are_unchanged_by_the_injection():
    before = set(named_tensors(model()))
    module = model()
    inject(module)
    assert set(named_tensors(module)) == before | {name for name, _ in lora_named_tensors(module)}


def test_injection_does_not_change_the_output():
    x = torch.linspace(-1, 1, 24).reshape(3, 8)
    module = model()
    expected = module(x)
    inject(module)
    assert torch.equal(module(x), expected)


def test_initial_values_depend_on_seed_and_name_only():
    first, second, other_seed, subset = model(), model(), model(), model()
    torch.manual_seed(1)
    inject(first)
    torch.manual_seed(2)
    inject(second)
    inject(other_seed, seed=6)
    inject(subset, targets=("attn.to_out.0",))
    tensors, again, others, some = (dict(lora_named_tensors(m)) for m in (first, second, other_seed, subset))
    assert all(torch.equal(tensors[name], again[name]) for name in tensors)
    assert all(torch.equal(tensors[name], some[name]) for name in some)
    assert not torch.equal(tensors["0.attn.to_q.lora_A.weight"], others["0.attn.to_q.lora_A.weight"])
    assert not torch.equal(tensors["0.attn.to_q.lora_A.weight"], tensors["1.attn.to_q.lora_A.weight"])


def test_initial_distribution():
    module = nn.Sequential()
    module.add_module("wide", nn.Linear(400, 4))
    inject(module, targets=("wide",), rank=64)
    down = dict(lora_named_tensors(module))["wide.lora_A.weight"]
    bound = 1 / math.sqrt(400)
    assert down.abs().max() <= bound
    assert down.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.02)
    assert dict(lora_named_tensors(module))["wide.lora_B.weight"].abs().max() == 0


def test_global_random_state_is_untouched():
    module = model()
    state = torch.random.get_rng_state()
    inject(module)
    assert torch.equal(torch.random.get_rng_state(), state)


def test_the_scale_is_alpha_over_rank():
    x = torch.linspace(-1, 1, 24).reshape(3, 8)
    module = nn.Sequential()
    module.add_module("only", nn.Linear(8, 8))
    base = module(x).detach()
    inject(module, targets=("only",), rank=2, alpha=6.0)
    tensors = dict(lora_named_tensors(module))
    with torch.no_grad():
        tensors["only.lora_B.weight"].fill_(0.5)
    expected = base + 3.0 * x @ tensors["only.lora_A.weight"].T @ tensors["only.lora_B.weight"].T
    torch.testing.assert_close(module(x), expected, atol=1e-6, rtol=1e-6)


def test_matrices_are_fp32_on_a_bf16_base():
    module = model(torch.bfloat16)
    inject(module)
    assert {tensor.dtype for _, tensor in lora_named_tensors(module)} == {torch.float32}
    assert module(torch.ones(1, 8, dtype=torch.bfloat16)).dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"targets": ("attn.to_qq",)}, "did you mean 'attn.to_q'"),
        ({"targets": ("attn.to_q", "nothing")}, "'nothing' matches no module"),
        ({"targets": ("attn",)}, "which is Attention, no linear layer"),
        ({"targets": ()}, "targets is empty"),
        ({"rank": 0}, "rank is 0"),
        ({"alpha": 0.0}, "alpha is 0.0"),
        ({"alpha": math.inf}, "alpha is inf"),
        ({"dropout": 1.0}, "dropout is 1.0"),
    ],
)
def test_bad_configurations_are_refused_and_change_nothing(changes, message):
    module = model()
    with pytest.raises(ConfigError, match=message):
        inject(module, **changes)
    assert bound_lora_modules(module) == 0
    assert all(parameter.requires_grad for parameter in module.parameters())


def test_a_second_injection_is_refused():
    module = model()
    inject(module)
    with pytest.raises(ConfigError, match="already holds a LoRA"):
        inject(module)


def test_verify_sees_a_disabled_layer_a_stale_scale_and_a_lost_layer():
    module = model()
    info = inject(module)
    layers = dict(lora_layers(module))
    layers["0.attn.to_q"].enable_adapters(False)
    with pytest.raises(WeightSyncError, match="3 modules apply the LoRA, expected 4"):
        verify_lora(module, info)
    layers["0.attn.to_q"].enable_adapters(True)
    layers["1.attn.to_q"].scaling["default"] = 1.0
    with pytest.raises(WeightSyncError, match=r"'1.attn.to_q' has rank 2 and scale 1.0, expected 2 and 2.0"):
        verify_lora(module, info)
    layers["1.attn.to_q"].scaling["default"] = 2.0
    verify_lora(module, info)
    module[0].attn.to_q = module[0].attn.to_q.base_layer
    with pytest.raises(WeightSyncError, match="3 modules apply"):
        verify_lora(module, info)


def test_checksums_tell_matrices_and_scales():
    one, same, scaled = model(), model(), model()
    inject(one)
    inject(same)
    inject(scaled, alpha=8.0)
    assert lora_checksums(one) == lora_checksums(same)
    assert len(lora_checksums(one)) == 8 + 4
    different = {name for name, found in lora_checksums(scaled).items() if found != lora_checksums(one)[name]}
    assert different == {f"{name}.lora_scale" for name, _ in lora_layers(one)}
    with torch.no_grad():
        next(lora_named_tensors(same))[1].view(-1)[3] += 1e-6
    different = {name for name, found in lora_checksums(same).items() if found != lora_checksums(one)[name]}
    assert different == {"0.attn.to_q.lora_A.weight"}


class Family:
    def __init__(self) -> None:
        self.transformer = model()

    def lora_targets(self) -> tuple[str, ...]:
        return ("attn.to_q",)


def test_a_recipe_s_lora_has_defaults():
    assert inject_configured_lora(Family(), LoraConfig(rank=0), seed=0) is None
    info = inject_configured_lora(Family(), LoraConfig(rank=3), seed=0)
    assert (info.rank, info.alpha, info.targets, info.expected_modules) == (3, 6.0, ("attn.to_q",), 2)
    info = inject_configured_lora(Family(), LoraConfig(rank=3, alpha=1.5, targets=["to_k"]), seed=0)
    assert (info.alpha, info.targets, info.expected_modules) == (1.5, ("to_k",), 4)


def test_an_adapter_travels_to_the_other_engine():
    actor, rollout = model(), model()
    info = inject(actor)
    inject(rollout, seed=99)
    with torch.no_grad():
        for _, tensor in lora_named_tensors(actor):
            tensor.add_(0.1)
    apply_tensors(rollout, receive(make_stream("adapter", lora_named_tensors(actor), info)))
    x = torch.linspace(-1, 1, 24).reshape(3, 8)
    assert torch.equal(actor(x), rollout(x))
    assert not torch.equal(actor(x), model()(x))
