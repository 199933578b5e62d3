"""The option --device of commands that take their device from it and not from the recipe."""

from __future__ import annotations

from collections.abc import Sequence

from omni_portable.contracts.errors import ConfigError


def refuse_device_overrides(overrides: Sequence[str]) -> None:
    """Refuse what --device would silently replace.

    Raises:
        ConfigError: an override of `device.name`, or of the section `device` as a whole.
    """
    for text in overrides:
        key = text.lstrip("+~").partition("=")[0].strip()
        if key == "device":
            raise ConfigError(
                f"{text}: this command takes its device from --device, which would replace the section",
                remedy="use --device, and override other keys of the section one by one (device.dtype=...)",
            )
        if key == "device.name" or key.startswith("device.name."):
            raise ConfigError(f"{text}: this command takes its device from --device", remedy="use --device")
