"""Pieces that several image families share: packing, padding, guidance, fused names, checks of folders."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from diffusers import QwenImagePipeline

from omni_portable.contracts.errors import ConfigError, ModelError, WeightSyncError
from omni_portable.models.diffusers_folder import check_image_size, cross_check, number_list
from omni_portable.models.fused_layout import JOINT_ATTENTION, FusedLayout
from omni_portable.models.guidance import linear_guidance, norm_keeping_guidance, require_negative
from omni_portable.models.packing import pack, unpack
from omni_portable.models.padding import join_padded, stack_padded
from omni_portable.models.qwen_image.layout import LAYOUT

PADDED = ("words",)


def test_packing_is_the_published_one_and_its_inverse():
    latents = torch.arange(2 * 3 * 4 * 6, dtype=torch.float32).reshape(2, 3, 4, 6)
    tokens = pack(latents)
    assert torch.equal(tokens, QwenImagePipeline._pack_latents(latents, 2, 3, 4, 6))
    assert torch.equal(unpack(tokens, 4, 6), latents)


def prompt(*lengths):
    return [{"words": torch.full((n, 2), float(n)), "pooled": torch.full((3,), float(n))} for n in lengths]


def test_prompts_of_one_length_need_no_mask():
    batch = stack_padded(prompt(3, 3), PADDED, "mask")
    assert {name: tuple(tensor.shape) for name, tensor in batch.items()} == {"words": (2, 3, 2), "pooled": (2, 3)}


def test_prompts_of_several_lengths_are_padded_with_zeros():
    batch = stack_padded(prompt(1, 3), PADDED, "mask")
    assert batch["words"][0].tolist() == [[1.0, 1.0], [0.0, 0.0], [0.0, 0.0]]
    assert batch["mask"].tolist() == [[True, False, False], [True, True, True]]
    with pytest.raises(ModelError, match="different shapes"):
        stack_padded([*prompt(2), {"words": torch.ones(2, 2), "pooled": torch.ones(4)}], PADDED, "mask")


@pytest.mark.parametrize(
    ("first", "second", "mask"),
    [
        ((3, 3), (3, 3), None),
        ((1, 1), (3, 3), [[1, 0, 0], [1, 0, 0], [1, 1, 1], [1, 1, 1]]),
        ((1, 2), (3, 3), [[1, 0, 0], [1, 1, 0], [1, 1, 1], [1, 1, 1]]),
        ((2, 2), (1, 2), [[1, 1], [1, 1], [1, 0], [1, 1]]),
    ],
)
def test_two_batches_become_one(first, second, mask):
    batches = [stack_padded(prompt(*lengths), PADDED, "mask") for lengths in (first, second)]
    joined = join_padded(*batches, PADDED, "mask")
    assert joined["pooled"][:, 0].tolist() == [float(n) for n in (*first, *second)]
    assert joined["words"].shape == (4, max(*first, *second), 2)
    assert (joined["mask"].int().tolist() if "mask" in joined else None) == mask


def test_guidance_rules():
    negative, positive = torch.tensor([[0.0, 1.0]]), torch.tensor([[3.0, 4.0]])
    assert linear_guidance(negative, positive, 2.0).tolist() == [[6.0, 7.0]]
    kept = norm_keeping_guidance(negative, positive, 2.0)
    torch.testing.assert_close(kept.norm(), positive.norm())
    torch.testing.assert_close(kept / kept.norm(), torch.tensor([[6.0, 7.0]]) / 85.0**0.5)
    assert require_negative({}, 2.0) == {}
    with pytest.raises(ModelError, match="needs the negative prompt's conditioning"):
        require_negative(None, 2.0)


def test_guidance_of_nothing_is_nothing():
    zero = torch.zeros(1, 4, requires_grad=True)
    guided = norm_keeping_guidance(torch.zeros(1, 4), zero, 3.0)
    guided.sum().backward()
    assert torch.equal(guided, torch.zeros(1, 4))
    assert torch.isfinite(zero.grad).all()


@pytest.mark.parametrize("layout", [JOINT_ATTENTION, LAYOUT])
def test_names_go_there_and_back(layout: FusedLayout):
    leaves = ("weight", "bias", "lora_A.weight", "lora_B.weight")
    layers = ("to_q", "to_v", "to_out.0", "add_k_proj", "to_add_out", "norm_q")
    for name in [f"transformer_blocks.3.attn.{layer}.{leaf}" for layer in layers for leaf in leaves]:
        assert layout.canonical_name(*layout.rollout_name(name)) == name


def test_fused_tensors_that_cannot_be_taken_apart():
    with pytest.raises(WeightSyncError, match="'a.to_qkv.weight' has 4 rows, no three equal parts"):
        JOINT_ATTENTION.split([("a.to_qkv.weight", torch.ones(4, 2))])


def test_checks_of_a_folder():
    path = Path("model")
    cross_check(path, [(1, 1, "left", "right")])
    with pytest.raises(ModelError, match="model does not fit together: left is 1, right is 2"):
        cross_check(path, [(1, 1, "a", "b"), (1, 2, "left", "right")])
    number_list(path, {"sizes": [1, 2]}, "sizes")
    number_list(path, {"means": [0, -0.5]}, "means", positive=False)
    for values in ([], None, 3, [0], [True], [1.5]):
        with pytest.raises(ModelError, match="model: 'sizes' is"):
            number_list(path, {"sizes": values}, "sizes")
    check_image_size(path, 16, None, 16, 4096)
    with pytest.raises(ConfigError, match="multiples of 16 pixels up to 64(.|\n)*rollout.width to 64"):
        check_image_size(path, 16, 64, 64, 80)
