"""Names and layout of a language model's tensors in Megatron, both ways, bit for bit; needs no Megatron."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from omni_backends.training.megatron.layout import fuse, share, unfuse, whole
from omni_backends.training.megatron.layout_shape import Shape
from omni_backends.training.megatron.names import Place, place, split_of
from omni_portable.contracts.errors import CapabilityError, WeightSyncError
from omni_portable.models.qwen3.tiny import build_tiny_qwen3
from omni_portable.models.weights import named_tensors
from tests.support.token_models import folder, load


def tiny(**changes):
    """Canonical tensors of a tiny Qwen3, and what its layout depends on."""
    adapter = load("qwen3", ("transformer",), **changes)
    config = adapter.transformer.language_model.config
    shape = Shape(config.num_attention_heads, config.num_key_value_heads, config.vocab_size, config.vocab_size)
    return {name: tensor.detach() for name, tensor in named_tensors(adapter.transformer).items()}, shape


@given(
    groups=st.integers(1, 4),
    ratio=st.integers(1, 4),
    head=st.integers(1, 6),
    width=st.integers(1, 5),
    data=st.data(),
)
def test_query_key_and_value_interleave_by_group(groups, ratio, head, width, data):
    """Row r of the fused tensor is what Megatron's attention takes it for: (groups, ratio q heads, k, v, head rows)."""
    sizes = {"q": groups * ratio * head, "k": groups * head, "v": groups * head}
    leaf = data.draw(st.sampled_from(["weight", "bias"]))
    shapes = {part: (rows, width) if leaf == "weight" else (rows,) for part, rows in sizes.items()}
    tensors = {f"model.layers.3.self_attn.{part}_proj.{leaf}": torch.randn(shapes[part]) for part in "qkv"}
    shape = Shape(groups * ratio, groups, 8, 8)
    fused = fuse(tensors, shape)
    (name,) = fused
    assert name == f"decoder.layers.3.self_attention.linear_qkv.{leaf}"
    rows = fused[name].reshape(groups, ratio + 2, head, *shapes["q"][1:])
    for part, taken in (("q", rows[:, :ratio]), ("k", rows[:, ratio]), ("v", rows[:, ratio + 1])):
        expected = tensors[f"model.layers.3.self_attn.{part}_proj.{leaf}"]
        assert torch.equal(taken.reshape(shapes[part]), expected)
    back = unfuse(fused, tensors, shape)
    assert list(back) == list(tensors)
    assert all(torch.equal(back[name], tensor) for name, tensor in tensors.items())


@given(ranks=st.sampled_from([1, 2, 4]), factor=st.integers(1, 3), width=st.sampled_from([4, 8]))
def test_shares_make_up_the_whole(ranks, factor, width):
    for name in (
        "decoder.layers.0.self_attention.linear_qkv.weight",
        "decoder.layers.0.mlp.linear_fc1.weight",
        "decoder.layers.0.mlp.linear_fc2.weight",
        "decoder.layers.0.self_attention.linear_proj.weight",
        "decoder.layers.0.input_layernorm.weight",
        "decoder.layers.0.self_attention.linear_qkv.layer_norm_weight",
        "embedding.word_embeddings.weight",
        "output_layer.weight",
    ):
        tensor = torch.randn(8 * factor, width)
        shares = [share(name, tensor, rank, ranks) for rank in range(ranks)]
        assert torch.equal(whole(name, shares), tensor)
        assert (ranks == 1 or shares[0].shape != tensor.shape) == (split_of(name) != "replicated" or ranks == 1)


def test_a_rank_holds_its_share_of_gate_and_of_up():
    gate, up = torch.zeros(4, 2), torch.ones(4, 2)
    name = "decoder.layers.0.mlp.linear_fc1.weight"
    for rank in (0, 1):
        mine = share(name, torch.cat([gate, up]), rank, 2)
        assert torch.equal(mine, torch.cat([gate[:2], up[:2]]))


@pytest.mark.parametrize("tied", [False, True])
def test_every_tensor_of_a_model_has_a_place(tied, tmp_path):
    tensors, shape = tiny(path=build_tiny_qwen3(tmp_path / "m", tied=True)) if tied else tiny()
    if tied:  # one tensor under two names; the policy trains it once
        tensors.pop("lm_head.weight")
    for fused_norms in (False, True):
        own = Shape(shape.heads, shape.groups, shape.vocabulary, shape.padded, fused_norms)
        fused = fuse(tensors, own)
        assert ("output_layer.weight" in fused) != tied
        assert len(fused) == len(tensors) - 3 * 2  # per layer q, k, v -> 1 and gate, up -> 1
        back = unfuse(fused, tensors, own)
        assert all(torch.equal(back[name], tensor) for name, tensor in tensors.items())


def test_the_vocabulary_is_padded_and_cut_again():
    tensors = {name: torch.randn(5, 3) for name in ("model.embed_tokens.weight", "lm_head.weight")}
    shape = Shape(2, 1, 5, 8)
    fused = fuse(tensors, shape)
    assert all(tensor.shape == (8, 3) and not tensor[5:].any() for tensor in fused.values())
    assert all(torch.equal(tensor, tensors[name]) for name, tensor in unfuse(fused, tensors, shape).items())


def test_transformer_engines_norms_belong_to_the_projection_behind_them():
    for name, own, theirs in (
        ("input_layernorm", "input_layernorm.weight", "self_attention.linear_qkv.layer_norm_weight"),
        ("post_attention_layernorm", "pre_mlp_layernorm.weight", "mlp.linear_fc1.layer_norm_weight"),
    ):
        canonical = f"model.layers.1.{name}.weight"
        assert place(canonical, fused_norms=False) == Place(f"decoder.layers.1.{own}")
        assert place(canonical, fused_norms=True) == Place(f"decoder.layers.1.{theirs}")


def test_what_has_no_place_is_refused_by_name():
    for name in ("model.layers.0.mlp.experts.down_proj", "model.visual.patch_embed.weight"):
        with pytest.raises(CapabilityError, match=name):
            place(name, fused_norms=False)
    with pytest.raises(CapabilityError, match="conv"):
        split_of("decoder.layers.0.conv.weight")
    with pytest.raises(WeightSyncError, match="lacks its part 'k'"):
        fuse({"model.layers.0.self_attn.q_proj.weight": torch.zeros(4, 2)}, Shape(2, 1, 5, 5))
    with pytest.raises(WeightSyncError, match="holds no tensor 'output_layer.weight'"):
        unfuse({}, ["lm_head.weight"], Shape(2, 1, 5, 5))


def test_the_tiny_model_is_one_of_grouped_queries():
    """The layouts above would agree trivially if it were not."""
    _, shape = tiny()
    assert shape.heads > shape.groups > 1
    assert folder("qwen3").is_dir()
