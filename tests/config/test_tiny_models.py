"""Models that are built when they are first used, and models of the hub that are found or named."""

from __future__ import annotations

import sys
import threading
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from omni_portable.config import tiny
from omni_portable.config.assets import check_source, resolve_model_path
from omni_portable.contracts import registry
from omni_portable.contracts.errors import ConfigError, ModelError
from omni_portable.contracts.registry import PluginSpec

BUILDER = """
import threading
BUILT = []
def build(path):
    path.mkdir()
    (path / "config.json").write_text("{}")
    BUILT.append(path)
def fail(path):
    path.mkdir()
    raise RuntimeError("no clay")
"""
SPEC = PluginSpec("clay", "", "", capabilities={"tiny": {"": "clay_builder:build", "broken": "clay_builder:fail"}})


@pytest.fixture
def clay(monkeypatch, tmp_path):
    """A family 'clay' whose builder lives in a module of its own; the cache is a folder that does not exist yet."""
    folder = tmp_path / "clay" / "package"
    folder.mkdir(parents=True)
    (folder / "clay_builder.py").write_text(BUILDER)
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.delitem(sys.modules, "clay_builder", raising=False)
    point = EntryPoint("clay", f"{__name__}:SPEC", registry.GROUPS["model"])
    monkeypatch.setitem(registry._entry_points("model"), "clay", point)
    monkeypatch.setenv(tiny.CACHE_VARIABLE, str(tmp_path / "cache"))
    yield folder
    sys.modules.pop("clay_builder", None)


def test_a_folder_is_built_once(clay, tmp_path):
    check_source("tiny:clay")
    assert not (tmp_path / "cache").exists()
    assert "clay_builder" not in sys.modules
    first = resolve_model_path("tiny:clay")
    assert first.parent == tmp_path / "cache" / "tiny"
    assert [file.name for file in first.iterdir()] == ["config.json"]
    assert resolve_model_path("tiny:clay") == first
    assert len(sys.modules["clay_builder"].BUILT) == 1
    assert [folder.name for folder in first.parent.iterdir()] == [first.name]


def test_another_builder_makes_another_folder(clay):
    first = resolve_model_path("tiny:clay")
    (clay / "helper.py").write_text("WIDTH = 8\n")
    assert resolve_model_path("tiny:clay") != first


def test_builders_that_race_do_not_disturb_each_other(clay):
    found: list[Path] = []
    threads = [threading.Thread(target=lambda: found.append(resolve_model_path("tiny:clay"))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(found)) == 1 == len(list(found[0].parent.iterdir()))


def test_a_builder_that_fails_leaves_nothing_behind(clay, tmp_path):
    for _ in range(2):
        with pytest.raises(RuntimeError, match="no clay"):
            resolve_model_path("tiny:clay/broken")
    assert list((tmp_path / "cache" / "tiny").iterdir()) == []


@pytest.mark.parametrize(
    ("name", "hint"), [("cla", "tiny:clay"), ("clay/brokn", "tiny:clay/broken"), ("", "tiny:clay")]
)
def test_unknown_names_are_refused_with_those_that_exist(clay, name, hint):
    for look in (check_source, resolve_model_path):
        with pytest.raises(ConfigError, match=f"no tiny model '{name}'(.|\n)*{hint}"):
            look(f"tiny:{name}")


def test_a_cache_that_cannot_be_written(clay, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(tiny.CACHE_VARIABLE, str(tmp_path / "file"))
    with pytest.raises(ConfigError, match=f"cannot be written(.|\n)*{tiny.CACHE_VARIABLE}"):
        resolve_model_path("tiny:clay")


def test_where_the_cache_is(monkeypatch, tmp_path):
    monkeypatch.delenv(tiny.CACHE_VARIABLE, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert tiny.cache_root() == tmp_path / "omni-portable"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert tiny.cache_root() == Path.home() / ".cache" / "omni-portable"


def test_every_family_s_builders_exist():
    for name in ("sd3", "qwen_image", "qwen_image_edit", "qwen_image_edit/first", "flux"):
        module, _, function = tiny.tiny_builder(name).partition(":")
        assert f"def {function}(" in Path(module.replace(".", "/") + ".py").read_text()


@pytest.fixture
def hub(monkeypatch, tmp_path):
    """A hub cache that holds one snapshot of 'org/model'."""
    snapshot = tmp_path / "hub" / "models--org--model" / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (snapshot / "model_index.json").write_text("{}")
    refs = snapshot.parents[1] / "refs"
    refs.mkdir()
    (refs / "main").write_text("abc")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.chdir(tmp_path)
    return snapshot


def test_a_download_is_found_by_its_id(hub):
    assert resolve_model_path("org/model") == hub


def test_a_folder_of_that_name_comes_first(hub, tmp_path):
    (tmp_path / "org" / "model").mkdir(parents=True)
    assert resolve_model_path("org/model") == Path("org/model")


def test_an_id_that_was_not_downloaded_says_how(hub):
    with pytest.raises(ModelError, match="model.path=org/other: there is no such folder(.|\n)*'hf download org/other'"):
        resolve_model_path("org/other")
    assert resolve_model_path("a/b/c") == Path("a/b/c")
