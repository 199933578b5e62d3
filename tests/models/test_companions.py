"""Teachers and saved LoRAs are compared with the model before weights load; every error names the key."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from omni_portable.cli import main
from omni_portable.config.loader import load_config, resolve_model_path
from omni_portable.config.schema import TeacherConfig
from omni_portable.contracts.errors import CapabilityError, ConfigError, ModelError, OmniPortableError
from omni_portable.models.companions import check_companions
from omni_portable.trainer.preflight import prepare

DISTILLED = ["sd3/diffusion_opd_ocr_tiny", "sd3/dmd2_glyphs_tiny"]
OPD = DISTILLED[0]


def refused(recipe: str, *overrides: str, error: type[OmniPortableError]) -> str:
    """What a run is refused with, before weights load."""
    with pytest.raises(error) as caught:
        prepare(load_config(recipe, overrides))
    return str(caught.value)


@pytest.fixture
def teacher(tmp_path: Path) -> Path:
    """A copy of the packaged model, its config files alone."""
    folder = tmp_path / "teacher"
    shutil.copytree(resolve_model_path("builtin:glyph-sd3"), folder, ignore=shutil.ignore_patterns("*.safetensors"))
    return folder


def edit(file: Path, **changes: object) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def compare(teacher: Path) -> None:
    config = load_config(OPD)
    config.model.teachers = {"t": TeacherConfig(path=str(teacher))}
    check_companions(config, resolve_model_path("builtin:glyph-sd3"))


@pytest.mark.parametrize("recipe", [*DISTILLED, "qwen_image/diffusion_opd_ocr_tiny", "qwen_vl/token_opd_colours_tiny"])
def test_teachers_of_the_recipes_fit(recipe: str):
    config = load_config(recipe)
    check_companions(config, resolve_model_path(config.model.path))


@pytest.mark.parametrize("recipe", DISTILLED)
def test_a_teacher_with_other_encoders_is_refused_before_a_run(recipe: str):
    said = refused(recipe, "model.teachers={t: {path: 'tiny:sd3', lora: ''}}", error=CapabilityError)
    assert "model.teachers.t.path=tiny:sd3 does not fit model.path=builtin:glyph-sd3" in said


@pytest.mark.parametrize(
    ("file", "changes", "part"),
    [
        ("transformer/config.json", {"joint_attention_dim": 192}, "'joint_attention_dim': 192, the student's is 128"),
        ("vae/config.json", {"scaling_factor": 3.5}, "vae/config.json, 'scaling_factor'"),
        ("text_encoder/config.json", {"num_hidden_layers": 99}, "text_encoder/config.json, 'num_hidden_layers'"),
        ("tokenizer/tokenizer.json", {"model": {"vocab": {"a": 0}}}, "vocabulary of tokenizer/tokenizer.json"),
    ],
)
def test_what_differs_is_named(teacher: Path, file: str, changes: dict[str, object], part: str):
    compare(teacher)
    edit(teacher / file, **changes)
    with pytest.raises(OmniPortableError) as caught:
        compare(teacher)
    assert part in str(caught.value) or "does not fit together" in str(caught.value)
    assert "model.teachers.t.path" in str(caught.value) or str(teacher) in str(caught.value)


@pytest.mark.parametrize(
    ("file", "changes"),
    [
        ("transformer/config.json", {"num_layers": 5}),
        ("vae/config.json", {"_diffusers_version": "0.1", "sample_size": 7}),
        ("text_encoder/config.json", {"transformers_version": "5"}),
        ("scheduler/scheduler_config.json", {"shift": 1.5}),
    ],
)
def test_what_a_teacher_may_differ_in(teacher: Path, file: str, changes: dict[str, object]):
    edit(teacher / file, **changes)
    compare(teacher)


def test_a_teacher_of_another_vocabulary_is_refused_for_models_that_write_tokens(tmp_path: Path):
    config = load_config("qwen_vl/token_opd_colours_tiny")
    student = resolve_model_path(config.model.path)
    other = tmp_path / "other"
    shutil.copytree(student, other, ignore=shutil.ignore_patterns("*.safetensors"))
    content = json.loads((other / "config.json").read_text())
    content["text_config"]["vocab_size"] += 64
    (other / "config.json").write_text(json.dumps(content))
    config.model.teachers = {"t": TeacherConfig(path=str(other))}
    with pytest.raises(CapabilityError, match=r"model\.teachers\.t\.path.*'vocab_size'"):
        check_companions(config, student)


@pytest.mark.parametrize(
    ("path", "parts"),
    [
        ("/nonexistent", ("no such folder",)),
        ("nobody/no-such-model", ("no download of that name",)),
        ("tiny:qwen3/answers", ("is a model of family 'qwen3', but model.family=sd3", "tiny:sd3")),
        ("builtin:nope", ("nothing called 'nope' is packaged",)),
        ("builtin:ocr-glyphs", ("it is no model",)),
    ],
)
def test_a_teacher_that_is_not_there_is_named_by_its_key(path: str, parts: tuple[str, ...]):
    said = refused(OPD, f"model.teachers={{t: {{path: '{path}', lora: ''}}}}", error=OmniPortableError)
    assert "model.teachers.t.path" in said
    assert "model.path" not in said.replace("model.path=builtin:glyph-sd3", "")
    assert all(part in said for part in parts)


@pytest.mark.parametrize("path", ["builtin:nope", "builtin:ocr-glyphs", "tiny:qwen3/answers", "tiny:nope"])
@pytest.mark.parametrize("key", ["model.path", "model.teachers.ocr.path"])
def test_dry_runs_refuse_names_that_cannot_be(capsys: pytest.CaptureFixture[str], key: str, path: str):
    assert main(["train", OPD, f"{key}='{path}'", "--dry-run"]) == 2
    assert f"{key}={path}" in capsys.readouterr().err


def test_a_folder_of_another_kind_says_what_it_holds():
    language = resolve_model_path("tiny:qwen3")
    said = refused("sd3/flow_grpo_ocr_tiny", f"model.path={language}", error=ModelError)
    assert "Qwen3" in said
    assert "set model.family" in said
    pipeline = resolve_model_path("builtin:glyph-sd3")
    said = refused("qwen3/grpo_letters_tiny", f"model.path={pipeline}", error=ModelError)
    assert "StableDiffusion3Pipeline" in said


@pytest.mark.parametrize("key", ["model.lora.path", "model.teachers.ocr.lora"])
def test_a_lora_folder_that_is_not_there_is_named_by_its_key(key: str):
    said = refused(OPD, "model.lora.rank=4", f"{key}=/nope", error=ModelError)
    assert f"{key}=/nope" in said


def test_a_teacher_that_cannot_draw_the_rollouts_size_is_refused(teacher: Path):
    edit(teacher / "transformer/config.json", pos_embed_max_size=2)
    with pytest.raises(ConfigError, match=r"rollout\.(height|width)"):
        compare(teacher)


def test_no_torch_is_needed():
    code = (
        "import sys; from omni_portable.config.loader import load_config; "
        "from omni_portable.models.companions import check_companions; "
        f"check_companions(load_config({OPD!r})); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
