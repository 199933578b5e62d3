"""Outlines of families without formulas: folders that are here, and names of models that are not."""

from __future__ import annotations

import importlib
import json
import struct
import subprocess
import sys

import pytest

from omni_portable.config.assets import find_model_path
from omni_portable.config.loader import list_recipes
from omni_portable.config.tiny import tiny_folder
from omni_portable.contracts import registry
from omni_portable.contracts.errors import ModelError
from omni_portable.models.folder_outline import FolderOutline, language_parts, pipeline_parts

FAMILIES = [name for name in registry.names("model") if name != "sd3"]
TRAINED_VARIANTS = ("answers", "knows")
"""Built by training the plain one, whose config they keep."""


def outline_of(family) -> FolderOutline:
    target = registry.spec("model", family).capabilities["outline"]
    module, _, name = target.partition(":")
    return getattr(importlib.import_module(module), name)


def tiny_names(family):
    tiny = registry.spec("model", family).capabilities["tiny"]
    variants = [""] if isinstance(tiny, str) else list(tiny)
    return [f"{family}/{variant}" if variant else family for variant in variants]


@pytest.mark.parametrize("family", FAMILIES)
def test_every_tiny_model_of_a_family_is_known(family):
    known = outline_of(family).known
    assert {f"tiny:{name}" for name in tiny_names(family)} == {name for name in known if name.startswith("tiny:")}


@pytest.mark.parametrize(
    "name", [name for f in FAMILIES for name in tiny_names(f) if not name.endswith(TRAINED_VARIANTS)]
)
def test_what_is_known_of_a_tiny_model_is_what_its_folder_says(name):
    outline = outline_of(name.partition("/")[0])
    folder = str(tiny_folder(name))
    built, unbuilt = outline(folder, None, "bfloat16", True), outline(f"tiny:{name}", None, "bfloat16", True)
    assert unbuilt.attention == built.attention
    assert unbuilt.parts == ()
    assert "weight files that could be counted are not on this machine" in unbuilt.unknown
    assert {part.component for part in built.parts} >= {outline.trainable}
    assert all(part.elements > 0 for part in built.parts)
    assert "one copy of all weights takes" in built.unknown


@pytest.mark.parametrize("family", FAMILIES)
def test_a_model_that_nobody_knows_has_no_head_dimensions(family):
    found = outline_of(family)("/models/secret", None, "bfloat16", True)
    assert found.attention
    assert {one.head_dim for one in found.attention} == {None}
    assert "without knowing head dimensions" in found.notes[0]


def test_a_published_model_is_known_by_the_last_part_of_its_path():
    outline = outline_of("flux")
    published = outline("black-forest-labs/FLUX.1-dev", None, "float32", False)
    assert [one.head_dim for one in published.attention] == [128, 64, 512]
    assert not any(one.backward for one in published.attention)
    assert outline("/models/flux.1-dev", None, "float32", False).attention == published.attention


def weights(path, **shapes):
    """A safetensors file of empty header offsets with fp32 zeros."""
    header, end = {}, 0
    for name, shape in shapes.items():
        size = 4
        for side in shape:
            size *= side
        header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(header).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(end))


def test_parts_of_a_pipeline(tmp_path):
    weights(tmp_path / "transformer" / "diffusion_pytorch_model.safetensors", a=(2, 3))
    weights(tmp_path / "transformer_2" / "diffusion_pytorch_model.safetensors", a=(4,))
    weights(tmp_path / "text_encoder" / "model.safetensors", b=(5,))
    weights(tmp_path / "audio_vae" / "diffusion_pytorch_model.safetensors", c=(7,))
    (tmp_path / "scheduler").mkdir()
    found = [(part.component, part.name, part.elements) for part in pipeline_parts(tmp_path)]
    assert found == [
        ("vae", "audio_vae", 7),
        ("text_encoder", "text_encoder", 5),
        ("transformer", "transformer", 6),
        ("transformer", "transformer_2", 4),
    ]


def test_parts_of_a_language_model(tmp_path):
    assert language_parts(tmp_path) == ()
    weights(tmp_path / "model.safetensors", **{"model.a": (2,), "model.visual.b": (3,), "talker.c": (4,)})
    parts = language_parts(tmp_path, left_out=("talker.",))
    assert [(part.component, part.elements) for part in parts] == [("language_model", 2), ("text_encoder", 3)]
    assert language_parts(tmp_path)[0].elements == 6


def test_a_damaged_folder_is_an_error(tmp_path):
    with pytest.raises(ModelError, match=r"model_index.json"):
        outline_of("flux")(str(tmp_path), None, "float32", True)


def test_a_model_that_is_not_here_is_neither_built_nor_loaded(monkeypatch, tmp_path):
    monkeypatch.setenv("OMNI_PORTABLE_CACHE", str(tmp_path))
    assert find_model_path("tiny:flux") is None
    assert find_model_path("nobody/has-this-model") is None
    assert find_model_path("/models/nowhere") is None
    assert list(tmp_path.iterdir()) == []


def test_planning_loads_neither_torch_nor_numpy(monkeypatch, tmp_path):
    monkeypatch.setenv("OMNI_PORTABLE_CACHE", str(tmp_path))
    folders = {str(tiny_folder("qwen_image")): "qwen_image", str(tiny_folder("qwen3")): "qwen3"}
    firsts = list({name.partition("/")[0]: name for name in list_recipes()}.values())
    code = (
        "import sys, importlib; from omni_portable.planning.resolve import make_plan\n"
        f"for name in {firsts!r}: make_plan(name, 'cuda:sm90')\n"
        "from omni_portable.contracts import registry\n"
        f"for path, family in {folders!r}.items():\n"
        "    importlib.import_module(f'omni_portable.models.{family}.outline').outline(path, None, 'float32', True)\n"
        "sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
