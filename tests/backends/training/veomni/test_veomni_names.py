"""Tensors in the layout of VeOmni's own classes, both ways, bit for bit; needs no VeOmni."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from diffusers import LTX2VideoTransformer3DModel, MiniMaxH3Transformer3DModel, QwenImageTransformer2DModel
from safetensors.torch import load_file, save_file

from omni_backends.training.veomni.names import CLASSES, canonical_tensors, own_tensors
from omni_backends.training.veomni.weights import read_weights, write_weights
from omni_portable.contracts.errors import CapabilityError, ModelError
from omni_portable.models.wan22.experts import Experts
from tests.backends.training.veomni.tiny import h3, ltx, tiny_folder, wan
from tests.support.token_models import load

MODELS = {
    "ltx2": ltx,
    "minimax_h3": h3,
    "wan22": wan,
    "qwen_image": lambda: QwenImageTransformer2DModel.from_pretrained(tiny_folder("qwen_image") / "transformer"),
    "qwen3_omni": lambda: load("qwen3_omni", ("transformer",)).transformer,
}


def state(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: tensor.detach() for name, tensor in model.state_dict().items()}


@pytest.mark.parametrize("family", MODELS)
def test_there_and_back(family):
    tensors = state(MODELS[family]())
    own = own_tensors(family, tensors)
    back = canonical_tensors(family, own)
    assert back.keys() == tensors.keys()
    assert all(torch.equal(back[name], tensor) for name, tensor in tensors.items())
    same = family not in ("ltx2", "minimax_h3")
    assert (own.keys() == tensors.keys()) == same


def test_heads_of_minimax_h3_hold_their_query_key_and_value():
    """As its attention reads them: (heads, 3, head width)."""
    tensors = state(h3())
    own = own_tensors("minimax_h3", tensors)
    rows = own["dit.blocks.1.attn.qkv_proj.weight"].reshape(2, 3, 16, 32)
    for index, part in enumerate("qkv"):
        expected = tensors[f"transformer_blocks.1.attn.to_{part}.weight"]
        assert torch.equal(rows[:, index].reshape(32, 32), expected)
    first, second = own["dit.blocks.0.mlp.fc1.weight"].chunk(2)  # gate above value, diffusers has value above gate
    value, gate = tensors["transformer_blocks.0.ff.net.0.proj.weight"].chunk(2)
    assert torch.equal(first, gate)
    assert torch.equal(second, value)


def test_a_thinker_is_taken_out_of_a_whole_model():
    tensors = state(load("qwen3_omni", ("transformer",)).transformer)
    whole = {f"thinker.{name}": tensor for name, tensor in tensors.items()}
    whole |= {"thinker.audio_tower.conv1.weight": torch.zeros(1), "talker.model.norm.weight": torch.zeros(1)}
    assert canonical_tensors("qwen3_omni", whole).keys() == tensors.keys()


@pytest.mark.parametrize("family", ["ltx2", "minimax_h3", "qwen_image"])
def test_files(family, tmp_path):
    first, second = MODELS[family](), MODELS[family]()
    for parameter in second.parameters():
        parameter.data.zero_()
    write_weights(family, tmp_path, state(first))
    read_weights(family, str(tmp_path), second)
    assert all(torch.equal(tensor, state(first)[name]) for name, tensor in state(second).items())


def test_two_experts_have_a_folder_each(tmp_path):
    both = Experts(wan(), wan(), ("transformer", "transformer_2"))
    write_weights("wan22", tmp_path, state(both))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["transformer", "transformer_2"]
    other = Experts(wan(), wan(), ("transformer", "transformer_2"))
    for parameter in other.parameters():
        parameter.data.zero_()
    read_weights("wan22", str(tmp_path), other)
    assert all(torch.equal(tensor, state(both)[name]) for name, tensor in state(other).items())


def _without(folder: Path) -> None:
    (folder / "model.safetensors").unlink()


def _truncated(folder: Path) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-10])


def _other(folder: Path, change) -> None:
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")


@pytest.mark.parametrize(
    ("damage", "match"),
    [
        (_without, "no safetensors"),
        (_truncated, "cannot be read"),
        (lambda folder: _other(folder, lambda t: t.pop("proj_out.bias")), "lack 'proj_out.bias'"),
        (lambda folder: _other(folder, lambda t: t.update(more=torch.zeros(1))), r"hold 'more' \(1,\)"),
        (lambda folder: _other(folder, lambda t: t.update({"proj_out.bias": torch.zeros(3)})), "'proj_out.bias'"),
    ],
)
def test_wrong_files_are_named_and_nothing_changes(damage, match, tmp_path):
    model = ltx()
    before = {name: tensor.clone() for name, tensor in state(model).items()}
    write_weights("ltx2", tmp_path, state(model))
    damage(tmp_path)
    with pytest.raises(ModelError, match=match):
        read_weights("ltx2", str(tmp_path), model)
    assert all(torch.equal(tensor, before[name]) for name, tensor in state(model).items())


def test_families_without_a_class_are_refused():
    assert "sd3" not in CLASSES
    with pytest.raises(CapabilityError, match="sd3"):
        own_tensors("sd3", {})


def test_the_doubles_are_the_librarys_classes():
    assert isinstance(ltx(), LTX2VideoTransformer3DModel)
    assert isinstance(h3(), MiniMaxH3Transformer3DModel)
