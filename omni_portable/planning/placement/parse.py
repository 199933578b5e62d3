"""From plain data to a profile, with errors that name the place."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from omni_portable.contracts.errors import ConfigError
from omni_portable.planning.placement.profile import (
    INTERRUPTED,
    MODES,
    SCHEMA,
    SCHEMA_VERSION,
    Placement,
    Profile,
    Row,
)

TOP = {"schema", "schema_version", "name", "source", "note", "context_tokens", "tensor_parallel_efficiency",
       "samples_per_prompt", "interrupted", "rows"}  # fmt: skip
PLACED = {"mode", "devices", "rollout_devices", "tensor_parallel", "prompts", "max_staleness", "sync_rounds"}
SECONDS = ("step_s", "rollout_s", "train_s", "reward_s", "sync_s", "switch_s")
LARGEST = 1e12
EXAMPLE = "docs/placement.md shows a profile; `plan placement RUN_DIR --save-profile FILE` writes that of a run"


def parse_profile(document: Any, where: str) -> Profile:
    """Check a document against the schema and the rules that a schema cannot say.

    Args:
        where: what errors call it (its file).

    Raises:
        ConfigError: names the key and what it may be.
    """
    top = _Object(document, where)
    found = (top.value.get("schema"), top.value.get("schema_version"))
    if found != (SCHEMA, SCHEMA_VERSION):
        raise ConfigError(
            f"{where} is no placement profile: its 'schema' and 'schema_version' are {found[0]!r} and {found[1]!r}",
            remedy=f"a profile says {SCHEMA!r} and {SCHEMA_VERSION}",
        )
    top.only(TOP)
    efficiency = {}
    for key, value in _Object(top.value.get("tensor_parallel_efficiency", {}), f"{where}: efficiency").value.items():
        place = f"{where}: tensor_parallel_efficiency.{key}"
        if not (key.isascii() and key.isdecimal() and len(key) <= 12) or int(key) < 1:
            raise ConfigError(
                f"{place}: the key is no number of devices", remedy="write the devices of a replica, such as '2': 0.9"
            )
        efficiency[int(key)] = _number(value, place, low=1e-3, high=4.0)
    rows = top.value.get("rows")
    if not isinstance(rows, list) or not rows:
        raise ConfigError(f"{where}: 'rows' must be a list of at least one measurement", remedy=EXAMPLE)
    context = top.number("context_tokens", 0.0)
    if 0 < context < 1:
        raise ConfigError(f"{where}: 'context_tokens' is {context}", remedy="give 0 (no such cost), or 1 and more")
    return Profile(
        name=str(top.value.get("name", where)),
        rows=tuple(_row(row, f"{where}: rows[{index}]") for index, row in enumerate(rows)),
        source=str(top.value.get("source", "")),
        context_tokens=context,
        tensor_parallel_efficiency=efficiency,
        samples_per_prompt=top.whole("samples_per_prompt", 1, low=1),
        interrupted=top.choice("interrupted", INTERRUPTED, "restart"),
    )


def _row(value: Any, where: str) -> Row:
    row = _Object(value, where)
    row.only(PLACED | {"tokens", *SECONDS})
    placement = _placement(row, where)
    seconds = {name: row.seconds(name) for name in SECONDS}
    if seconds["step_s"] is None and (seconds["rollout_s"] is None or seconds["train_s"] is None):
        raise ConfigError(
            f"{where}: a row needs 'step_s', or 'rollout_s' and 'train_s', or all of them", remedy=EXAMPLE
        )
    if seconds["rollout_s"] == 0 and seconds["train_s"] == 0:
        raise ConfigError(
            f"{where}: 'rollout_s' and 'train_s' are both 0", remedy="leave out what was not measured, or give 'step_s'"
        )
    if seconds["switch_s"] and placement.mode != "sync":
        raise ConfigError(
            f"{where}: 'switch_s' is of mode 'sync' only: rollout with devices of its own never sleeps",
            remedy="leave it out",
        )
    return Row(placement, row.number("tokens", 0.0), **seconds)


def _placement(row: _Object, where: str) -> Placement:
    mode = row.choice("mode", MODES)
    devices = row.whole("devices", low=1)
    parallel = row.whole("tensor_parallel", 1, low=1)
    if mode == "sync":
        rollout = row.whole("rollout_devices", devices, low=1)
        if rollout != devices or row.value.get("max_staleness", 0) or row.value.get("sync_rounds", 1) != 1:
            raise ConfigError(
                f"{where}: under 'sync' rollout uses all devices, staleness is 0 and weights travel after every step",
                remedy="leave out 'rollout_devices', 'max_staleness' and 'sync_rounds'",
            )
    else:
        rollout = row.whole("rollout_devices", low=1)
        if rollout >= devices:
            raise ConfigError(
                f"{where}: {rollout} of {devices} devices belong to rollout, which leaves none for the trainer",
                remedy="'devices' counts those of rollout and of the trainer together",
            )
    if rollout % parallel:
        raise ConfigError(
            f"{where}: replicas of {parallel} devices do not divide {rollout} rollout devices",
            remedy=f"give 'rollout_devices' as a multiple of 'tensor_parallel', which is {parallel}",
        )
    return Placement(
        mode,
        devices,
        rollout,
        parallel,
        row.whole("prompts", low=1),
        0 if mode == "sync" else row.whole("max_staleness", 1, low=0),
        1 if mode == "sync" else row.whole("sync_rounds", 1, low=1),
    )


class _Object:
    """An object of the document and what errors call it."""

    def __init__(self, value: Any, where: str) -> None:
        if not isinstance(value, Mapping):
            raise ConfigError(f"{where} must be an object, not {type(value).__name__}", remedy=EXAMPLE)
        self.value: Mapping[str, Any] = value
        self._where = where

    def only(self, names: Collection[str]) -> None:
        unknown = sorted(set(self.value) - set(names))
        if unknown:
            raise ConfigError(f"{self._where}: unknown key '{unknown[0]}'", choices=sorted(names))

    def choice(self, name: str, choices: Collection[str], default: str | None = None) -> str:
        value = self.value.get(name, default)
        if value not in choices:
            raise ConfigError(f"{self._where}: '{name}' is {value!r}", choices=list(choices))
        return str(value)

    def whole(self, name: str, default: int | None = None, *, low: int) -> int:
        value = self.value.get(name, default)
        if type(value) is not int or not low <= value <= LARGEST:
            raise ConfigError(f"{self._where}: '{name}' is {value!r}", remedy=f"give a whole number from {low}")
        return value

    def number(self, name: str, default: float) -> float:
        return _number(self.value.get(name, default), f"{self._where}: '{name}'")

    def seconds(self, name: str) -> float | None:
        value = self.value.get(name)
        low = 1e-9 if name == "step_s" else 0.0
        return None if value is None else _number(value, f"{self._where}: '{name}'", low=low)


def _number(value: Any, where: str, *, low: float = 0.0, high: float = LARGEST) -> float:
    ok = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not ok or not low <= value <= high:  # which not-a-number and infinity are not either
        raise ConfigError(f"{where} is {value!r}", remedy=f"give a number from {low:g} to {high:g}")
    return float(value)
