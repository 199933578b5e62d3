"""Options of scorers that look at an image or at frames of a video; no NumPy, so that specs load at once."""

from __future__ import annotations

from typing import Literal

from omni_portable.contracts.errors import ConfigError

Looked = Literal["image", "video"]
"""What a scorer of pictures looks at: an image, or frames of a video."""


def check_every(scorer: str, every: int) -> None:
    """`ConfigError` unless `every` can be a step."""
    if every < 1:
        raise ConfigError(f"the {scorer} scorer's option every={every} must be at least 1")
