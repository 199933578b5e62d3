"""What the pages say is true: links lead somewhere, keys and recipes exist, tables stay narrow."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from omni_portable.cli.main import parse
from omni_portable.config.convert import all_keys
from omni_portable.config.loader import load_config
from omni_portable.config.schema import RunConfig
from omni_portable.conformance.catalogue import all_checks
from omni_portable.contracts import registry
from omni_portable.trainer.saving import FREE_KEYS
from tests.docs.pages import LINK, PAGES, ROOT, anchors, blocks, commands, prose

WRITTEN = [page for page in PAGES if "<!-- Made by ci/generate_docs.py" not in page.read_text(encoding="utf-8")]
SECTIONS = "|".join({key.partition(".")[0] for key in all_keys(RunConfig)} - {"recipe"})
KEY = re.compile(rf"`(?:A\.)?~?((?:{SECTIONS})\.[a-zA-Z_.]+)(?:[=:][^`]*)?`")


OPTIONS = {
    "model": "model",
    "rollout": "rollout_engine",
    "actor": "train_engine",
    "dataplane": "data_plane",
    "launcher": "launcher",
}
"""Section of the configuration -> kind of the plugin whose options it takes."""


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links(page: Path) -> None:
    for link in LINK.findall(prose(page)):
        if link.startswith("http"):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


def known_key(key: str) -> bool:
    parts = key.split(".")
    if ".".join(parts[:2]) in ("reward.scorers", "device.attention"):
        return True
    if parts[0] == "algorithm":
        options = registry.spec("algorithm", "flow_grpo").options
        return parts[1] == "name" or parts[1] in options.__dataclass_fields__
    if parts[1:2] == ["options"] and parts[2:]:
        kind = OPTIONS[parts[0]]
        return any(parts[2] in registry.spec(kind, each).options.__dataclass_fields__ for each in registry.names(kind))
    if key in {check.id for check in all_checks()}:
        return True
    known = all_keys(RunConfig)
    return key in known or any(other.startswith(f"{key}.") for other in known)


@pytest.mark.parametrize("page", WRITTEN, ids=name)
def test_keys_exist(page: Path) -> None:
    text = prose(page)
    if page.name == "coming-from-verl.md":  # the first column holds their keys
        text = "\n".join("|".join(line.split("|")[2:]) for line in text.splitlines() if line.startswith("|"))
    assert [key for key in KEY.findall(text) if not known_key(key.rstrip("."))] == []


def test_keys_are_found() -> None:
    assert KEY.findall("`rollout.n=8`, `trainer.resume: never`, `~reward.scorers.ocr`, `models.loading`") == [
        "rollout.n",
        "trainer.resume",
        "reward.scorers.ocr",
    ]


def test_quoted_errors_exist() -> None:
    """The fixed parts of the messages that the user guide explains stand in the code."""
    files = [file for folder in ("omni_portable", "devices", "backends") for file in (ROOT / folder).rglob("*.py")]
    code = "".join(file.read_text(encoding="utf-8") for file in files)
    code = re.sub(r'"\s*\n\s*f?"', "", code)  # strings that go on in the next line
    table = prose(ROOT / "docs" / "user-guide.md").partition("## Errors")[2]
    quoted = [
        text for cell in re.findall(r"^\| (`.+?`) \|", table, re.MULTILINE) for text in re.findall(r"`(.+?)`", cell)
    ]
    assert len(quoted) > 25
    pieces = [piece.strip() for text in quoted for piece in re.split(r"\.\.\.|'|\bN\b|no device", text)]
    assert [piece for piece in pieces if len(piece) > 5 and piece not in code] == []


@pytest.mark.parametrize("page", WRITTEN, ids=name)
def test_lines_are_narrow(page: Path) -> None:
    assert [line for line in page.read_text(encoding="utf-8").splitlines() if len(line) > 120] == []


@pytest.mark.parametrize("page", ["README.md", "docs/user-guide.md"])
def test_commands_are_understood(page: str) -> None:
    for block in blocks(ROOT / page):
        for command in commands(block.text):
            arguments = parse(command[1:])
            if hasattr(arguments, "recipe"):
                load_config(arguments.recipe, arguments.overrides)


def test_first_changes_of_the_readme() -> None:
    """The table's second column: overrides of the packaged recipe."""
    table = re.findall(r"^\| [^|]+ \| `([^|]+=[^|]+)` \|$", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert len(table) >= 5
    for overrides in table:
        load_config("sd3/flow_grpo_ocr_tiny", shlex.split(overrides))


def test_recipes_of_the_user_guide(tmp_path: Path) -> None:
    recipes = [block.text for block in blocks(ROOT / "docs" / "user-guide.md") if block.language == "yaml"]
    assert len(recipes) == 2
    for index, text in enumerate(recipes):
        path = tmp_path / f"recipe{index}.yaml"
        path.write_text(text)
        load_config(str(path))


def test_the_user_guide_names_every_key_that_a_resumed_run_may_change() -> None:
    page = (ROOT / "docs" / "user-guide.md").read_text(encoding="utf-8")
    said = page[page.index("## Resume") :].partition("\n## ")[0]
    named = {name.rpartition(".")[2] for name in re.findall(r"`([a-z_.]+)`", said)}
    sections = set(re.findall(r"all of\s+`([a-z_]+)`", said))
    free = {key for key in FREE_KEYS if key != "recipe" and key.partition(".")[0] not in sections}
    assert {key for key in free if key.rpartition(".")[2] not in named} == set()
