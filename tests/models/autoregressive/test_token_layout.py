"""Names and tensors of the rollout engine's fused layout, there and back."""

from __future__ import annotations

import pytest
import torch

from omni_portable.contracts.errors import WeightSyncError
from omni_portable.models.autoregressive.layout import fuse, rollout_name, split
from omni_portable.models.lora import inject_lora, lora_named_tensors
from omni_portable.models.weights import named_tensors
from tests.support.token_models import FAMILIES, load


@pytest.mark.parametrize("family", FAMILIES)
def test_full_weights_there_and_back_bit_for_bit(family: str) -> None:
    adapter = load(family, ("transformer",))
    own = dict(adapter.transformer.named_parameters())
    fused = fuse(own.items(), adapter.rollout_prefixes)
    assert len(fused) < len(own)
    assert not any(part in name for name in fused for part in (".q_proj.", ".k_proj.", ".up_proj."))
    shapes = {name: tensor.shape for name, tensor in own.items()}
    back = split(fused, shapes, adapter.rollout_prefixes)
    assert list(back) == list(own)
    assert all(torch.equal(back[name], own[name]) for name in own)


@pytest.mark.parametrize("family", FAMILIES)
def test_lora_keeps_its_names(family: str) -> None:
    adapter = load(family, ("transformer",))
    inject_lora(adapter.transformer, rank=2, alpha=4, targets=adapter.lora_targets(), seed=0)
    for name, tensor in lora_named_tensors(adapter.transformer):
        assert list(adapter.rollout_layout(name, tensor)) == [(name, tensor)]


def test_names() -> None:
    prefixes = load("qwen3_omni", ()).rollout_prefixes
    names = {
        "lm_head.weight": ("language_model.lm_head.weight", None),
        "model.layers.3.self_attn.k_proj.bias": ("language_model.model.layers.3.self_attn.qkv_proj.bias", "k"),
        "model.layers.3.mlp.up_proj.weight": ("language_model.model.layers.3.mlp.gate_up_proj.weight", "up"),
        "model.layers.3.mlp.experts.gate_up_proj": (
            "language_model.model.layers.3.mlp.experts.routed_experts.w13_weight",
            None,
        ),
        "model.layers.3.mlp.gate.weight": ("language_model.model.layers.3.mlp.gate.weight", None),
        "model.norm.weight": ("language_model.model.norm.weight", None),
    }
    assert {name: rollout_name(name, prefixes) for name in names} == names
    spelled = dict(load("qwen3", ()).rollout_layout("model.layers.0.self_attn.q_proj.weight", torch.ones(1)))
    assert list(spelled) == ["model.layers.0.self_attn.qkv_proj.weight:q"]


def test_what_is_missing_is_named() -> None:
    tensor = torch.ones(2, 2)
    with pytest.raises(WeightSyncError, match=r"qkv_proj.weight' lacks its part 'k'"):
        fuse([("a.q_proj.weight", tensor), ("a.v_proj.weight", tensor)], {})
    with pytest.raises(WeightSyncError, match=r"no tensor 'a.qkv_proj.weight' for 'a.q_proj.weight'"):
        split({}, {"a.q_proj.weight": tensor.shape}, {})


def test_canonical_names_are_the_librarys() -> None:
    for family in FAMILIES:
        policy = load(family, ("transformer",)).transformer
        whole = dict(policy._unregistered[0].named_parameters())
        assert {name: id(p) for name, p in policy.named_parameters()}.items() <= {
            name: id(p) for name, p in whole.items()
        }.items()
        assert set(named_tensors(policy)) >= set(dict(policy.named_parameters()))
