"""Paths that users write: expanded, and refused with the key's name where nobody can look."""

from __future__ import annotations

from pathlib import Path

import pytest

from omni_portable.config.paths import user_path
from omni_portable.contracts.errors import ConfigError


def test_a_home_folder_is_expanded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert user_path("~/x", "model.path") == tmp_path / "x"


@pytest.mark.parametrize("text", ["", "x", "nowhere/x", "/dev/null/x"])
def test_what_is_not_there_is_no_error(text: str) -> None:
    assert user_path(text, "model.path") == Path(text)


@pytest.mark.parametrize("text", ["~nobody-of-that-name/x", "a" * 300, "a\0b", "\ud800"])
def test_where_nobody_can_look(text: str) -> None:
    with pytest.raises(ConfigError, match="^data.train: the path .* cannot be used: "):
        user_path(text, "data.train")


def test_links_in_a_circle(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(ConfigError, match="symbolic links"):
        user_path(str(tmp_path / "loop"), "trainer.run_dir")
