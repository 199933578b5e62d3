"""Loading: composition, overrides, types, and errors that name the key, the value as typed and what is valid."""

from __future__ import annotations

from pathlib import Path

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from hypothesis import given
from hypothesis import strategies as st

from omni_portable.config import loader
from omni_portable.config.loader import load_config, plugin_options, read_config, to_yaml
from omni_portable.config.quoting import quote_value
from omni_portable.contracts.errors import ConfigError
from tests.config.fakes import RECIPE


def fails(recipe: str, *overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load_config(recipe, overrides)
    return str(caught.value)


def test_recipe_and_overrides_are_merged_over_the_defaults(recipe):
    config = load_config(recipe, ["rollout.n=4", "algorithm.noise_level=0.7", "actor.lr=3", "trainer.run_dir=2024"])
    assert config.recipe == recipe
    assert config.rollout.n == 4
    assert config.rollout.max_num_seqs == 32  # the default
    assert config.algorithm == {"name": "grpo", "clip": 2e-5, "noise_level": 0.7}
    assert (config.actor.lr, type(config.actor.lr)) == (3.0, float)
    assert config.trainer.run_dir == "2024"


def test_later_overrides_win_and_a_tilde_removes(recipe):
    config = load_config(recipe, ["rollout.n=4", "+rollout.n=8", "~algorithm.clip"])
    assert config.rollout.n == 8
    assert config.algorithm == {"name": "grpo"}


def test_overrides_may_add_a_whole_section(recipe):
    config = load_config(recipe, ["reward.scorers.second={kind: reader, weight: 0.5}", "trainer.loggers=[jsonl]"])
    assert config.reward.scorers["second"] == {"kind": "reader", "weight": 0.5}
    assert config.trainer.loggers == ["jsonl"]


def test_interpolations_see_overrides_and_defaults(write_recipe):
    path = write_recipe(RECIPE + "rollout: {max_num_seqs: '${rollout.n}', width: '${rollout.height}'}\n")
    config = load_config(path, ["rollout.n=6"])
    assert (config.rollout.max_num_seqs, config.rollout.width) == (6, 512)


def test_a_recipe_extends_its_neighbour(write_recipe):
    write_recipe(RECIPE, "_base.yaml")
    path = write_recipe("defaults: [_base, _self_]\nrollout: {n: 3}\nalgorithm: {clip: 1.0}\n")
    config = load_config(path)
    assert config.rollout.n == 3
    assert config.algorithm == {"name": "grpo", "clip": 1.0}


def test_a_recipe_extends_a_packaged_one(write_recipe, tmp_path, monkeypatch):
    write_recipe(RECIPE, "packaged folder's/toy/base.yaml")
    for module in ("compose", "loader", "recipes"):
        monkeypatch.setattr(f"omni_portable.config.{module}.recipe_root", lambda: tmp_path / "packaged folder's")
    path = write_recipe("defaults: [/toy/base@_global_, _self_]\nrollout: {n: 5}\n")
    assert load_config(path).rollout.n == 5
    nested = write_recipe("defaults: [/toy/base, _self_]\n", "nested.yaml")
    assert "- /toy/RECIPE@_global_" in fails(nested)
    assert load_config("base", ["rollout.n=7"]).rollout.n == 7


@pytest.mark.parametrize(
    ("override", "parts"),
    [
        ("rolout.n=4", ["'rolout.n'", "rollout.n"]),
        ("rollout.num_step=4", ["rollout.num_step", "did you mean 'rollout.num_steps'"]),
        ("train_batch_size=4", ["'data.train_batch_size'"]),
        ("actor_rollout_ref.rollout.n=4", ["'rollout.n'"]),
        ("model.lora.rnk=4", ["model.lora.rnk", "model.lora.rank", "model.lora.alpha"]),
        ("algorithm.nois_level=1", ["algorithm.nois_level", "algorithm.noise_level", "'algorithm.nois_level=1'"]),
        ("algorithm.inner.betta=1", ["algorithm.inner.betta", "algorithm.inner.beta"]),
        ("reward.scorers.main.languag=x", ["reward.scorers.main.languag", "reward.scorers.main.language"]),
        ("rollout.options.turbo=true", ["rollout.options.turbo"]),
        ("rollout.n.x=1", ["rollout.n", "'x'"]),
    ],
)
def test_unknown_keys_name_close_matches(recipe, override, parts):
    message = fails(recipe, override)
    assert all(part in message for part in parts), message


@pytest.mark.parametrize(
    ("override", "parts"),
    [
        ("rollout.n=abc", ["'rollout.n=abc' on the command line", "an integer"]),
        ("rollout.n=4.5", ["rollout.n=4.5", "an integer"]),
        ("rollout.n=1e3", ["rollout.n=1e3", "an integer"]),
        ("rollout.n=true", ["truth value"]),
        ("rollout.n=null", ["got null"]),
        ("data.validation=null", ["got null", "write data.validation= on the command line", "validation: ''"]),
        ("rollout.n=[1,2]", ["list"]),
        ("actor.lr=fast", ["a number"]),
        ("actor.gradient_checkpointing=yes please", ["true or false"]),
        ("trainer.run_dir=true", ["put it in quotes"]),
        ("trainer.loggers=jsonl", ["expected a list"]),
        ("trainer.loggers=[1.5]", ["trainer.loggers[0]"]),
        ("rollout=4", ["'rollout' is a section", "integer"]),
        ("device.attention={transformer: 3.5}", ["device.attention.transformer"]),
        ("algorithm.clip=wide", ["algorithm.clip=wide", "a number"]),
        ("algorithm.step_kind=spd", ["algorithm.step_kind=spd", "sde", "cps"]),
        ("algorithm.indices=[1,x]", ["algorithm.indices[1]", "an integer"]),
        ("reward.scorers.main=reader", ["a scorer is a section"]),
    ],
)
def test_wrong_types_show_the_value_as_typed(recipe, override, parts):
    message = fails(recipe, override)
    assert all(part in message for part in parts), message


@pytest.mark.parametrize(
    ("override", "part"),
    [
        ("rollout.n", "cannot be parsed"),
        ("rollout.n=[1", "cannot be parsed"),
        ("=3", "names no key"),
        ("rollout.n=1,2", "several runs"),
        ("rollout.n=range(1,4)", "several runs"),
        ("--resume", "go before the recipe"),
        ("rollout@x=1", "'@'"),
        ("~rollout.options.x", "removes a key"),
        ("rollout.height=${rollout.nothing}", "rollout.nothing"),
        ("rollout.height=${rollout.height}", "rollout.height"),
    ],
)
def test_unusable_overrides(recipe, override, part):
    assert part in fails(recipe, override)


def test_missing_mandatory_values_name_the_key(write_recipe):
    assert "'model.family' has no value" in fails(write_recipe("rollout: {n: 2}\n"))
    assert "'model.family' has no value" in fails(write_recipe(""))
    nameless = RECIPE.replace("name: grpo, ", "")
    assert "'algorithm.name' has no value" in fails(write_recipe(nameless))
    assert "'data.train' has no value" in fails(write_recipe(RECIPE + "\n"), "data.train=???")
    assert "'reward.scorers.main.url' has no value" in fails(write_recipe(RECIPE), "reward.scorers.main.kind=remote")


@pytest.mark.parametrize(
    ("lines", "parts"),
    [
        ("data.train: x.jsonl", ["'data.train'", "data: {train: VALUE}", "data.train=VALUE"]),
        ("rollout: {options.turbo: true}", ["'options.turbo' of 'rollout'", "rollout: {options: {turbo: VALUE}}"]),
        ("no.such: 1", ["no: {such: VALUE}"]),
    ],
)
def test_dotted_keys_in_a_recipe_are_to_be_nested(write_recipe, lines, parts):
    message = fails(write_recipe(RECIPE + lines + "\n"))
    assert all(part in message for part in parts), message
    assert "did you mean" not in message


def test_recipe_file_problems(write_recipe, tmp_path):
    assert "line 3" in fails(write_recipe("a: 1\nb: [1\nc: 2\n"))
    assert "tab" in fails(write_recipe("rollout:\n\tn: 2\n"))
    assert "list" in fails(write_recipe("- a\n- b\n"))
    assert "text" in fails(write_recipe(RECIPE + "rollout: hello\n"))
    assert "unknown configuration key '7'" in fails(write_recipe("7: 2\n"))
    assert "no_such" in fails(write_recipe("defaults: [no_such]\n"))
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    assert "UTF-8" in fails(str(tmp_path / "binary.yaml"))
    (tmp_path / "short.yml").write_text(RECIPE)
    assert ".yaml" in fails(str(tmp_path / "short.yml"))
    assert "is a folder" in fails(str(tmp_path))


def test_an_unknown_recipe_lists_those_that_exist(plugins, monkeypatch):
    monkeypatch.setattr("omni_portable.config.recipes.list_recipes", lambda: ["sd3/first", "sd3/second", "wan/second"])
    message = fails("sd3/frist")
    assert "did you mean 'sd3/first'" in message
    assert "sd3/second" in message
    assert "several recipes" in fails("second")


def test_yaml_round_trip(recipe, tmp_path):
    config = load_config(recipe, ["actor.eps=1e-12", "rollout.negative_prompt=''", "data.fields=[a,b]"])
    path = tmp_path / "config.yaml"
    path.write_text(to_yaml(config))
    assert read_config(path) == config
    path.write_text(to_yaml(config).replace("  eps:", "  epsilon:"))
    with pytest.raises(ConfigError, match=r"actor\.epsilon"):
        read_config(path)
    with pytest.raises(ConfigError, match="nowhere"):
        read_config(tmp_path / "nowhere.yaml")


def test_plugin_options_skip_reserved_keys(plugins):
    options = plugin_options("reward", "reader", {"kind": "reader", "weight": 2.0, "language": "de"})
    assert options.language == "de"
    assert plugin_options("algorithm", "grpo", {"name": "grpo", "indices": [3, 4]}).indices == (3, 4)


def test_loading_twice_leaves_no_state(recipe):
    assert load_config(recipe) == load_config(recipe)


def test_packaged_files_are_found_by_name_only():
    assert loader.packaged("__init__.py").is_file()
    for name in ("no-such", "../cli"):
        with pytest.raises(ConfigError, match="packaged"):
            loader.packaged(name)
    assert loader.resolve_model_path("~/x") == Path.home() / "x"
    with pytest.raises(ConfigError, match="glyph-sd9"):
        loader.resolve_model_path("builtin:glyph-sd9")


@given(st.text(st.characters(min_codepoint=32, exclude_categories=("Cs",)), min_size=1))
def test_any_text_survives_quoting(text):
    value = OverridesParser.create().parse_override(f"trainer.run_dir={quote_value(text)}").value()
    assert (value, type(value)) == (text, str)


@pytest.mark.parametrize("text", ["null", "true", "1e3", "a/b", "X\u00f8", "a\\", "a\\'", "it's", "[a]", "a=b", " "])
def test_texts_that_look_like_something_else(text):
    value = OverridesParser.create().parse_override(f"k={quote_value(text)}").value()
    assert (value, type(value)) == (text, str)


@pytest.mark.parametrize(
    ("files", "circle"),
    [
        ({"loop2": "loop2"}, "loop2.yaml -> loop2.yaml"),
        ({"a": "b", "b": "c", "c": "a"}, "a.yaml -> b.yaml -> c.yaml -> a.yaml"),
        ({"top": "a", "a": "b", "b": "a"}, "a.yaml -> b.yaml -> a.yaml"),
        ({"slash": "/slash@_global_"}, "slash.yaml -> slash.yaml"),
    ],
)
def test_a_recipe_that_extends_itself_is_named_with_its_circle(write_recipe, files, circle):
    paths = [
        write_recipe(f"defaults: [{other}, _self_]\nrollout: {{n: 4}}\n", f"{name}.yaml")
        for name, other in files.items()
    ]
    with pytest.raises(ConfigError) as caught:
        load_config(paths[0])
    assert f"extends itself: {circle}" in str(caught.value)


def test_two_ways_to_the_same_recipe_are_no_circle(write_recipe):
    write_recipe(RECIPE, "base.yaml")
    write_recipe("defaults: [base, _self_]\n", "left.yaml")
    write_recipe("defaults: [base, _self_]\n", "right.yaml")
    path = write_recipe("defaults: [left, right, _self_]\nrollout: {n: 4}\n", "both.yaml")
    assert load_config(path).rollout.n == 4
