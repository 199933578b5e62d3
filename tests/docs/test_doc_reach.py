"""What the README claims of the registry is true, and every page can be found from it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ci.docs_readme import BEGIN, END, PLANNED, PLANNING
from omni_portable.cli.main import parse
from omni_portable.config.assets import assets_root
from omni_portable.config.rules import CHOICES
from omni_portable.contracts import registry
from tests.docs.pages import LINK, PAGES, ROOT, prose

README = ROOT / "README.md"
KINDS = ("device", "model", "algorithm", "reward", "rollout_engine", "train_engine", "launcher", "data_plane")
PARTS = {"_comparison.md"}
"""Put into other pages by ci/generate_docs.py."""


def exists() -> str:
    return README.read_text(encoding="utf-8").partition(BEGIN)[2].partition(END)[0]


@pytest.mark.parametrize("kind", KINDS)
def test_the_readme_names_everything_that_is_registered(kind: str) -> None:
    ours = {point.name for point in registry._entry_points(kind).values() if point.dist.name == "omni-portable"}  # type: ignore[union-attr]
    assert ours
    assert [name for name in sorted(ours) if f"`{name}`" not in exists()] == []


def test_the_readme_names_every_mode_and_command_of_planning() -> None:
    assert [mode for mode in CHOICES["trainer.mode"] if f"`{mode}`" not in exists()] == []
    assert [command for command in PLANNING if f"`{command}`" not in exists()] == []


def test_what_is_not_there_yet_is_not_there() -> None:
    words = {re.sub(r"[^a-z0-9]", "", word.lower()) for text in PLANNED for word in text.split()}
    registered = {name.replace("_", "") for kind in KINDS for name in registry.names(kind)}
    assert words & registered == set()


def test_every_page_is_reached_from_the_readme() -> None:
    """By links from page to page."""
    reached: set[Path] = set()
    waiting = [README]
    while waiting:
        page = waiting.pop()
        if page in reached:
            continue
        reached.add(page)
        targets = [(page.parent / link.partition("#")[0]).resolve() for link in LINK.findall(prose(page))]
        waiting += [target for target in targets if target.suffix == ".md" and target.is_file()]
    assert [str(page.relative_to(ROOT)) for page in PAGES if page not in reached and page.name not in PARTS] == []


def test_users_are_not_sent_to_notes_for_developers() -> None:
    """READMEs inside the packages are about the code."""
    for page in (README, ROOT / "docs" / "user-guide.md", ROOT / "docs" / "data.md"):
        assert [link for link in LINK.findall(prose(page)) if "omni_portable/" in link] == [], page.name


def test_the_command_table_has_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    table = prose(ROOT / "docs" / "user-guide.md").partition("## The command")[2].partition("\n## ")[0]
    with pytest.raises(SystemExit):
        parse(["--help"])
    shown = capsys.readouterr().out.partition("  COMMAND\n")[2]
    commands = re.findall(r"^    ([a-z]+(?: [a-z]+)?)(?:  |$)", shown, re.MULTILINE)
    assert {"train", "data", "simulate", "plan placement"} <= set(commands)
    assert [name for name in commands if f"`omni-portable {name}" not in table] == []


def test_every_packaged_set_is_listed() -> None:
    sets = {path.parent.name for path in assets_root().glob("*/train.*")}
    section = prose(ROOT / "docs" / "data.md").partition("## Packaged prompts")[2].partition("\n## ")[0]
    assert {name for name in re.findall(r"^\| `builtin:([a-z-]+)` \|", section, re.MULTILINE)} == sets
