"""Paths as users write them."""

from __future__ import annotations

from pathlib import Path

from omni_portable.config.shown import shown
from omni_portable.contracts.errors import ConfigError


def user_path(text: str, key: str) -> Path:
    """The path that `text`, the value of `key`, names; '~' and '~user' are expanded. It need not exist.

    Raises:
        ConfigError: nobody can look there: an unknown user, a name that is too long, a folder that may not be entered.
    """
    path = Path(text)
    try:
        path = path.expanduser()
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        pass  # whether something must be there is the caller's to say
    except (OSError, RuntimeError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else str(error).rstrip(".")
        raise ConfigError(f"{key}: the path {shown(text)} cannot be used: {why}") from error
    return path
