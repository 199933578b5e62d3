"""Values in messages: whole where they are short, cut where they are long."""

from __future__ import annotations

import pytest

from omni_portable.config.paths import user_path
from omni_portable.config.shown import shown
from omni_portable.contracts.errors import ConfigError


@pytest.mark.parametrize("value", ["a 'quoted' text", 7, None, [1, "x"], b"\0", {"a": 1.5}])
def test_short_values_are_shown_whole(value: object) -> None:
    assert shown(value) == repr(value)


@pytest.mark.parametrize(
    ("value", "ending"),
    [
        ("x" * 3_000_000, "(3000000 characters)"),
        ("\x1b" * 3000, "(3000 characters)"),
        (b"\0" * 5000, "(5000 bytes)"),
        (list(range(10_000)), "characters)"),
        ({"a": "b" * 9000}, "characters)"),
    ],
)
def test_long_values_are_cut_and_measured(value: object, ending: str) -> None:
    assert len(shown(value)) < 250
    assert shown(value).endswith(ending)


def test_a_path_that_is_none_does_not_fill_the_screen() -> None:
    with pytest.raises(ConfigError) as caught:
        user_path("A" * 3_000_000, "data.train")
    assert len(str(caught.value)) < 250
    assert "data.train: the path 'AAA" in str(caught.value)
