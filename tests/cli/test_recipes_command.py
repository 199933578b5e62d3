"""`omni-portable recipes`: what it lists, what it shows, and that every published row has a recipe and a tiny twin."""

from __future__ import annotations

import dataclasses
import json
from functools import reduce
from pathlib import Path
from typing import Any

import pytest
import yaml

from omni_portable.cli import main
from omni_portable.config.loader import list_recipes, load_config

ROWS: list[dict[str, Any]] = json.loads((Path(__file__).parents[1] / "data" / "published_recipes.json").read_text())[
    "rows"
]
SETTLED = [row for row in ROWS if row["settings"]]


@pytest.fixture
def listed(capsys):
    def run(*arguments: str) -> dict[str, dict[str, Any]]:
        assert main(["recipes", "list", "--json", *arguments]) == 0
        return {entry["name"]: entry for entry in json.loads(capsys.readouterr().out)}

    return run


def test_every_published_row_has_a_recipe_and_a_tiny_twin_that_is_tested(listed):
    entries = listed()
    assert list(entries) == list_recipes()
    for row in ROWS:
        entry = entries[row["recipe"]]
        assert (entry["size"], entry["status"]) == ("full", "composed and planned; its tiny twin is tested"), row
        twin = entries[entry["twin"]]
        assert (twin["family"], twin["algorithm"]) == (entry["family"], entry["algorithm"]), row
        assert twin["size"] == "tiny"


def test_recipes_say_what_they_are(listed):
    for entry in listed().values():
        assert entry["summary"].endswith("."), entry["name"]
        assert len(entry["summary"]) < 200, entry["name"]
        assert entry["rewards"], entry["name"]
        assert (entry["status"] == "composed and planned") == (entry["size"] == "full" and not entry["twin"])
        assert isinstance(entry["differs"], list)


@pytest.mark.parametrize("row", SETTLED, ids=[row["recipe"] for row in SETTLED])
def test_recipes_have_the_published_settings(row):
    config = dataclasses.asdict(load_config(row["recipe"]))
    found = {key: reduce(lambda section, part: section[part], key.split("."), config) for key in row["settings"]}
    assert found == row["settings"]


def test_filters(listed, capsys):
    tiny, full = listed("--tiny"), listed("--full")
    assert sorted([*tiny, *full]) == list_recipes()
    assert all(name.endswith("_tiny") for name in tiny)
    some = listed("--family", "qwen3_omni", "--algorithm", "gspo", "--full")
    assert sorted(some) == ["qwen3_omni/gspo_avqa", "qwen3_omni/gspo_gsm8k", "qwen3_omni/gspo_mmk12"]
    assert main(["recipes", "list", "--family", "qwen3", "--algorithm", "grpo", "--tiny"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == [
        "qwen3/grpo_gsm8k_tiny",
        "qwen3/grpo_letters_tiny",
    ]


def test_words_are_looked_for_everywhere(listed, capsys):
    assert next(iter(listed("MMK12", "with", "GSPO", "on", "Qwen2.5-VL"))) == "qwen_vl/gspo_mmk12"
    assert list(listed("mmk12 gspo", "--tiny"))[:2] == ["qwen3_omni/gspo_mmk12_tiny", "qwen_vl/gspo_mmk12_tiny"]
    assert list(listed("text rendering", "nft", "--family", "qwen_image")) == ["qwen_image/diffusion_nft_ocr"]
    assert set(listed("MiniMaxAI", "--full")) == {n for n in listed("--full") if n.startswith("minimax_h3/")}


def test_nothing_found_is_said(capsys):
    assert main(["recipes", "list", "mmk13", "--family", "qwen_vl"]) == 0
    told = capsys.readouterr()
    assert told.out == ""
    assert "no packaged recipe fits: mmk13, family=qwen_vl; none has 'mmk13' in it. did you mean 'mmk12'?" in told.err
    assert main(["recipes", "list", "ocr", "--family", "qwen_vl", "--json"]) == 0
    assert capsys.readouterr().out == "[]\n"


def test_a_command_is_optional(capsys):
    assert main(["recipes"]) == 0
    plain = capsys.readouterr().out
    assert main(["recipes", "list"]) == 0
    assert capsys.readouterr().out == plain


@pytest.mark.parametrize(("option", "value"), [("--family", "sd33"), ("--algorithm", "FlowGRPO")])
def test_unknown_names_are_told(capsys, option, value):
    assert main(["recipes", "list", option, value]) == 2
    error = capsys.readouterr().err
    assert f"{option}={value}" in error
    assert "valid choices" in error
    assert f"did you mean '{'sd3' if option == '--family' else 'flow_grpo'}'?" in error


def test_tiny_and_full_exclude_each_other():
    with pytest.raises(SystemExit):
        main(["recipes", "list", "--tiny", "--full"])


def test_what_is_shown_is_a_recipe_again(tmp_path, capsys):
    assert main(["recipes", "show", "qwen_image/mix_grpo_ocr"]) == 0
    path = tmp_path / "again.yaml"
    path.write_text(capsys.readouterr().out)
    shown, first = load_config(str(path)), load_config("qwen_image/mix_grpo_ocr")
    assert dataclasses.replace(shown, recipe="") == dataclasses.replace(first, recipe="")


def test_an_unknown_recipe_cannot_be_shown(capsys):
    assert main(["recipes", "show", "sd3/nothing"]) == 2
    assert "no recipe 'sd3/nothing'" in capsys.readouterr().err


def test_show_says_whose_settings_and_what_differs(capsys, tmp_path):
    assert main(["recipes", "show", "wan22/dance_grpo_t2v"]) == 0
    shown = capsys.readouterr().out
    assert "# settings of: VeRL-Omni, run_wan22_5b_t2v_hpsv3_auto\n" in shown
    assert "# differs from the source: checks of motion and light are rewarded, instead of" in shown
    assert yaml.safe_load(shown)["model"]["family"] == "wan22"
    (tmp_path / "own.yaml").write_text(shown)
    assert main(["recipes", "show", str(tmp_path / "own.yaml")]) == 0
    assert not capsys.readouterr().out.startswith("#"), "nothing is known of a file of somebody's own"


def test_an_incomplete_name_is_answered_with_the_recipes_that_have_it(capsys):
    assert main(["recipes", "show", "FL2VA"]) == 2
    choices = capsys.readouterr().err.partition("valid choices: ")[2].strip().split(", ")
    assert choices == [name for name in list_recipes() if "fl2va" in name]
    assert main(["recipes", "show", "flow_grpo_ocr_tinny"]) == 2
    error = capsys.readouterr().err
    assert "did you mean 'sd3/flow_grpo_ocr_tiny'?" in error
    assert error.count("sd3/") < 4
