"""Numbers that YAML reads otherwise than they look: refused where the reading is not what was meant."""

from __future__ import annotations

from pathlib import Path

import pytest

from omni_portable.config.loader import load_config
from omni_portable.config.recipes import list_recipes, recipe_root
from omni_portable.config.spelled import misread, spelled
from omni_portable.contracts.errors import ConfigError

SD3 = "sd3/flow_grpo_ocr_tiny"


def recipe(folder: Path, text: str, name: str = "mine", base: str = "/sd3/flow_grpo_ocr_tiny@_global_") -> Path:
    path = folder / f"{name}.yaml"
    path.write_text(f"defaults: [{base}, _self_]\n{text}\n")
    return path


@pytest.mark.parametrize("text", ["1_2", "007", "0x1F", "+5", "1:30"])
def test_a_text_of_digits_in_a_recipe_is_not_taken_for_a_number(tmp_path: Path, text: str) -> None:
    path = recipe(tmp_path, f"trainer:\n  run_dir: {text}")
    with pytest.raises(ConfigError) as refused:
        load_config(str(path))
    assert f"trainer.run_dir={text} in {path}: without quotes {text} is read as the number" in str(refused.value)
    assert f'run_dir: "{text}"' in refused.value.remedy
    quoted = recipe(tmp_path, f'trainer:\n  run_dir: "{text}"')
    assert load_config(str(quoted)).trainer.run_dir == text


def test_a_text_of_digits_on_the_command_line_is_not_taken_for_a_number() -> None:
    with pytest.raises(ConfigError, match=r"'trainer.run_dir=1_2' on the command line: without quotes 1_2 is read as"):
        load_config(SD3, ["trainer.run_dir=1_2"])
    assert load_config(SD3, ["trainer.run_dir='1_2'"]).trainer.run_dir == "1_2"
    assert load_config(SD3, ["trainer.run_dir=12"]).trainer.run_dir == "12", "a folder called 12 needs no quotes"
    assert load_config(SD3, ["trainer.run_dir=12_a"]).trainer.run_dir == "12_a"


def test_underscores_group_the_digits_of_a_number(tmp_path: Path) -> None:
    assert load_config(SD3, ["trainer.total_steps=1_200"]).trainer.total_steps == 1200
    path = recipe(tmp_path, "trainer:\n  total_steps: 1_200\nactor:\n  lr: 0x1")
    config = load_config(str(path))
    assert (config.trainer.total_steps, config.actor.lr) == (1200, 1.0)


@pytest.mark.parametrize(("key", "text", "number"), [("total_steps", "010", 8), ("total_steps", "1:30", 90)])
def test_numbers_that_are_read_in_another_base_are_refused(tmp_path: Path, key: str, text: str, number: int) -> None:
    path = recipe(tmp_path, f"trainer:\n  {key}: {text}")
    with pytest.raises(ConfigError, match=f"without quotes {text} is read as the number {number}"):
        load_config(str(path))
    assert load_config(str(path), [f"trainer.{key}=11"]).trainer.total_steps == 11, "an override replaces it"


def test_recipes_that_are_extended_are_asked_too(tmp_path: Path) -> None:
    recipe(tmp_path, "trainer:\n  run_dir: 1_2", "base")
    child = recipe(tmp_path, "trainer:\n  total_steps: 3", "child", base="base")
    with pytest.raises(ConfigError, match="run_dir=1_2"):
        load_config(str(child))
    again = recipe(tmp_path, "trainer:\n  run_dir: here", "again", base="base")
    assert load_config(str(again)).trainer.run_dir == "here"


def test_lists_and_free_sections_are_covered(tmp_path: Path) -> None:
    path = recipe(tmp_path, "trainer:\n  loggers: [jsonl, 1_2]")
    assert spelled(path) == {"trainer.loggers[1]": frozenset({("1_2", 12)})}
    with pytest.raises(ConfigError, match=r"loggers\[1\]=1_2"):
        load_config(str(path))
    path = recipe(tmp_path, "reward:\n  scorers:\n    ocr: {kind: ocr, model: 1_2}\n# 010 in a comment is nothing")
    assert spelled(path) == {"reward.scorers.ocr.model": frozenset({("1_2", 12)})}


def test_damaged_and_packaged_recipes_have_none(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("a: [")
    assert spelled(tmp_path / "a.yaml") == spelled(tmp_path / "none.yaml") == {}
    assert all(not spelled(recipe_root() / f"{name}.yaml") for name in list_recipes()[::10])


def test_bases() -> None:
    assert [text for text in ("0", "-0", "10", "1_0", "010", "+07", "1:30", "0x10", "0b1", "00") if misread(text)] == [
        "010", "+07", "1:30", "00",
    ]  # fmt: skip
