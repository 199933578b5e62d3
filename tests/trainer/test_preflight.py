"""What is refused before weights load, on a folder that holds config files but no weights at all."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from omni_portable.config.loader import load_config
from omni_portable.config.schema import RunConfig
from omni_portable.contracts import registry
from omni_portable.contracts.errors import (
    AttentionUnavailable,
    CapabilityError,
    ConfigError,
    DataError,
    ModelError,
    OmniPortableError,
)
from omni_portable.contracts.registry import PluginSpec
from omni_portable.contracts.reward import RewardOutput, ScorerRequirements
from omni_portable.models.sd3.tiny import build_tiny_sd3
from omni_portable.trainer.preflight import prepare, split_name

RECIPE = """
model: {family: sd3, path: MODEL}
algorithm: {name: flow_grpo}
device: {name: cpu}
rollout: {n: 2, num_steps: 4, height: 32, width: 32}
reward: {scorers: {small: {kind: jpeg_compressibility}}}
data: {train: TRAIN, train_batch_size: 2}
"""


@pytest.fixture(scope="module")
def bare_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny SD3 folder without its weights: whatever is refused here was refused before they would load."""
    folder = build_tiny_sd3(tmp_path_factory.mktemp("bare") / "sd3")
    for weights in folder.rglob("*.safetensors"):
        weights.unlink()
    return folder


@pytest.fixture
def write_config(tmp_path: Path, bare_model: Path):
    def write(*overrides: str) -> RunConfig:
        train = tmp_path / "train.jsonl"
        if not train.exists():
            train.write_text("".join(json.dumps({"prompt": f"p {i}"}) + "\n" for i in range(4)))
        recipe = tmp_path / "recipe.yaml"
        recipe.write_text(RECIPE.replace("MODEL", str(bare_model)).replace("TRAIN", str(train)))
        return load_config(str(recipe), list(overrides))

    return write


def refused(config: RunConfig, kind: type[OmniPortableError]) -> str:
    with pytest.raises(kind) as caught:
        prepare(config)
    return str(caught.value)


def test_a_good_configuration_is_settled(write_config) -> None:
    prepared = prepare(write_config())
    assert prepared.dtype == "float32"
    assert {name: choice.family for name, choice in prepared.load.attention.items()} == {
        "transformer": "sdpa",
        "text_encoder": "sdpa",
        "vae": "sdpa",
    }
    assert len(prepared.train_rows) == 4
    assert prepared.validation_rows == []
    assert len(prepared.sampler.batch(0)) == 2


def test_the_packaged_sets_are_cut_to_the_wanted_length(write_config) -> None:
    config = write_config(
        "data.train=builtin:ocr-glyphs", "data.validation=builtin:ocr-glyphs", "data.max_validation_prompts=3"
    )
    assert len(prepare(config).validation_rows) == 3


@pytest.mark.parametrize("family", ["flash_attention_2", "flash_attention_3", "aiter"])
def test_a_kernel_that_is_not_here_fails_closed(write_config, family: str) -> None:
    message = refused(write_config(f"device.attention.transformer={family}"), AttentionUnavailable)
    assert family in message
    assert "transformer" in message
    assert "sdpa" in message, "what may be chosen instead"


def test_a_component_the_model_does_not_have_is_named(write_config) -> None:
    message = refused(write_config("device.attention.language_model=sdpa"), CapabilityError)
    assert "language_model" in message
    assert "text_encoder" in message


def test_a_dtype_without_arithmetic_is_refused(write_config) -> None:
    message = refused(write_config("device.dtype=float16"), CapabilityError)
    assert "device.dtype=float16" in message
    assert "float32" in message


def test_a_missing_model_folder_is_named(write_config, tmp_path: Path) -> None:
    message = refused(write_config(f"model.path={tmp_path / 'nowhere'}"), ModelError)
    assert str(tmp_path / "nowhere") in message


def test_a_broken_config_file_is_named(write_config, bare_model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "broken"
    shutil.copytree(bare_model, folder)
    (folder / "vae" / "config.json").write_text("{")
    assert str(folder / "vae" / "config.json") in refused(write_config(f"model.path={folder}"), ModelError)


def test_a_missing_prompt_file_is_named(write_config, tmp_path: Path) -> None:
    assert "lost.txt" in refused(write_config(f"data.train={tmp_path / 'lost.txt'}"), DataError)


def test_fields_that_scorers_need_are_checked_on_every_row(write_config) -> None:
    message = refused(write_config("reward.scorers={read: {kind: ocr}}"), DataError)
    assert "ground_truth" in message
    assert "row 1" in message


def test_fewer_prompts_than_a_batch_are_refused(write_config) -> None:
    message = refused(write_config("data.train_batch_size=5"), DataError)
    assert "data.train_batch_size=5" in message
    assert "4" in message


def test_validation_prompts_that_are_trained_on_are_refused(write_config, tmp_path: Path) -> None:
    (tmp_path / "held_out.jsonl").write_text(json.dumps({"prompt": "P  1"}) + "\n")
    message = refused(write_config(f"data.validation={tmp_path / 'held_out.jsonl'}"), DataError)
    assert "P  1" in message


@dataclass(frozen=True)
class ListenerOptions:
    artifact: str = "speech"


class Listener:
    """A scorer that only says at construction what it needs."""

    name = "listener"

    def __init__(self, options: ListenerOptions) -> None:
        self.requires = ScorerRequirements(artifacts={options.artifact: "audio"})

    def score(self, batch: list) -> RewardOutput:
        return RewardOutput(scores=[0.0 for _ in batch])


LISTENER = PluginSpec("listener", "test double", "tests.trainer.test_preflight:Listener", ListenerOptions)


@pytest.mark.parametrize("artifact", ["speech", "image"])
def test_an_artifact_the_model_does_not_make_is_refused(
    write_config, monkeypatch: pytest.MonkeyPatch, artifact: str
) -> None:
    point = EntryPoint("listener", "tests.trainer.test_preflight:LISTENER", registry.GROUPS["reward"])
    monkeypatch.setitem(registry._entry_points("reward"), "listener", point)
    config = write_config(f"reward.scorers={{ear: {{kind: listener, artifact: {artifact}}}}}")
    message = refused(config, CapabilityError)
    assert f"the audio artifact '{artifact}'" in message
    assert "'sd3'" in message
    assert "image (image)" in message


def test_split_name() -> None:
    assert split_name({"name": "flow_grpo", "clip_ratio": 1}) == ("flow_grpo", {"clip_ratio": 1})


def routed(tmp_path: Path, *rows: dict[str, object]) -> RunConfig:
    """The routed recipe on rows of its own: two teachers, 'ocr' and 'preference'."""
    train = tmp_path / "routed.jsonl"
    train.write_text(
        "".join(json.dumps({"prompt": f"p {i}", "ground_truth": "A"} | row) + "\n" for i, row in enumerate(rows))
    )
    return load_config("sd3/diffusion_opd_routed_tiny", [f"data.train={train}", "data.train_batch_size=1"])


@pytest.mark.parametrize(
    ("row", "part"),
    [
        ({}, "field 'teacher' is missing"),
        ({"teacher": " "}, "field 'teacher' is empty"),
        ({"teacher": "orc"}, "field 'teacher' is 'orc', which is none of model.teachers"),
        ({"teacher": ["ocr"]}, "field 'teacher' is ['ocr'], which is none of model.teachers"),
    ],
)
def test_prompts_without_a_known_teacher_are_named_by_file_and_row(
    tmp_path: Path, row: dict[str, object], part: str
) -> None:
    problem = refused(routed(tmp_path, {"teacher": "ocr"}, {"teacher": "preference"}, row), DataError)
    assert f"{tmp_path / 'routed.jsonl'} row 3: {part}" in problem
    if "none of" in part:
        assert "valid choices: ocr, preference" in problem


def test_prompts_that_all_name_a_teacher_are_taken(tmp_path: Path) -> None:
    prepared = prepare(routed(tmp_path, {"teacher": "ocr"}, {"teacher": "preference"}))
    assert [row.metadata["teacher"] for row in prepared.train_rows] == ["ocr", "preference"]


def test_a_teacher_field_without_teachers_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"model\.teacher_field=teacher is set, but model\.teachers is empty"):
        load_config("sd3/flow_grpo_ocr_tiny", ["model.teacher_field=teacher"])


def test_validation_sizes_are_named_by_their_own_key(write_config) -> None:
    held = ("data.validation=builtin:ocr-glyphs", "reward.scorers={ocr: {kind: ocr}}", "data.train=builtin:ocr-glyphs")
    for override in ("validation.height=33", "validation.width=41"):
        problem = refused(write_config(*held, override), ConfigError)
        assert f"{override.partition('=')[0]} is {override.partition('=')[2]}" in problem
        assert f"set {override.partition('=')[0]}" in problem
        assert "rollout." not in problem
