"""Overrides of the command line, in Hydra's `key=value` grammar, applied to a composed recipe."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Sequence
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf

from omni_portable.config.convert import Source, all_keys, join, unknown_key
from omni_portable.contracts.errors import ConfigError


def parse_overrides(texts: Sequence[str]) -> list[Override]:
    """Parse each override; a key may be set (`key=value`) or removed (`~key`). `+key` means the same as `key`.

    Raises:
        ConfigError: the text does not parse, or asks for a sweep.
    """
    parser = OverridesParser.create()
    return [_parse(parser, text) for text in texts]


def _parse(parser: OverridesParser, text: str) -> Override:
    try:
        override = parser.parse_override(text)
    except HydraException as error:
        hint = "write key=value without spaces around '='; put values with special characters in quotes: 'key=\"a, b\"'"
        if text.startswith("-"):
            hint = "options of the command go before the recipe; overrides look like rollout.n=8"
        raise ConfigError(f"the override '{text}' cannot be parsed: {error}", remedy=hint) from error
    if not override.key_or_group:
        raise ConfigError(f"the override '{text}' names no key", remedy="write key=value")
    if override.package is not None:
        raise ConfigError(f"the override '{text}' uses '@', which has no meaning here", remedy="write key=value")
    if override.is_sweep_override():
        raise ConfigError(
            f"the override '{text}' asks for several runs", remedy="write a list as key=[1,2]; start one run per value"
        )
    return override


def apply_overrides(config: DictConfig, overrides: Sequence[Override], schema: type) -> None:
    """Write the overrides into `config` in place, in their order, after checking each key against `schema`.

    Keys below a free-form section (options of plugins) are checked later, against the plugin's own dataclass.

    Raises:
        ConfigError: a key that the schema does not have, or `~key` of a key that is not there.
    """
    for override in overrides:
        key = override.key_or_group.replace("/", ".")
        check_key(key, schema, override.input_line)
        if override.is_delete():
            _delete(config, key, override.input_line)
        else:
            OmegaConf.update(config, key, override.value(), merge=False, force_add=True)


def _delete(config: DictConfig, key: str, text: str) -> None:
    parent_key, _, name = key.rpartition(".")
    parent = OmegaConf.select(config, parent_key) if parent_key else config
    if not isinstance(parent, DictConfig) or name not in parent:
        present = sorted(str(known) for known in parent) if isinstance(parent, DictConfig) else []
        raise ConfigError(f"'{text}' removes a key that the recipe does not have", choices=present)
    del parent[name]


def check_key(key: str, schema: type, text: str) -> None:
    """Refuse a dotted key that `schema` (a dataclass) does not have; stops where a free-form section begins.

    Raises:
        ConfigError: names the key, the closest ones and those that are valid at that depth.
    """
    current: Any = schema
    done = ""
    for part in key.split("."):
        if not (dataclasses.is_dataclass(current) and isinstance(current, type)):
            if typing.get_origin(current) is dict:
                return
            raise ConfigError(
                f"'{text}': '{done}' is a single value, it has no key '{part}'", remedy=f"set {done}=VALUE"
            )
        hints = typing.get_type_hints(current)
        if part not in hints:
            known = [join(done, name) for name in hints]
            raise unknown_key(key, known, Source({key: text}, keys=all_keys(schema)))
        current, done = hints[part], join(done, part)
