"""docs/data.md: its snippet runs, its kinds and scorers are those that exist, its recipe keys are accepted."""

from __future__ import annotations

import re

import yaml

from omni_portable.cli.main import parse
from omni_portable.config.convert import build
from omni_portable.config.schema import RunConfig
from omni_portable.contracts import registry
from omni_portable.data.kinds import KINDS
from tests.docs.pages import ROOT, blocks, commands, prose

PAGE = ROOT / "docs" / "data.md"


def test_snippet(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (snippet,) = (block.text for block in blocks(PAGE) if block.language == "python")
    exec(compile(snippet, "data.md", "exec"), {})
    assert (tmp_path / "sample.mp4").is_file()


def test_recipe_sections_have_keys_that_exist():
    for block in blocks(PAGE):
        if block.language == "yaml":
            sections = {"model": {"family": "sd3", "path": "x"}, "data": {"train": "x"}}
            given = yaml.safe_load(block.text)
            build(RunConfig, sections | given)


def test_commands_are_understood():
    found = [command for block in blocks(PAGE) for command in commands(block.text)]
    assert len(found) == 3
    for command in found:
        parse(command[1:])


def test_every_kind_and_scorer_is_there():
    text = prose(PAGE)
    assert set(re.findall(r"^\| `([a-z0-9-]+)` \|", text, re.MULTILINE)) >= set(KINDS)
    table = text.partition("## Rewards")[2].partition("## Validation")[0]
    named = {
        name
        for line in table.splitlines()
        for name in re.findall(r"`([a-z_]+)`", line.partition("|")[2].partition("|")[0])
    }
    assert named <= set(registry.names("reward"))
    assert {"math_boxed", "audio_clipping", "video_flicker", "preference"} <= named
