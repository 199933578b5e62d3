"""Ray's actors: what a class that `ray.remote` decorates has instead of its own names.

`Actor.options(...)` is the class again, `Actor.remote(*arguments of the constructor)` a handle, and every method of the
class is called on the handle as `handle.method.remote(*arguments)`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ci.vendor_contracts.signature import ANY


def follow(record: Mapping[str, Any], step: str) -> Mapping[str, Any] | None:
    """The record one step on from a decorated class or what comes of it; None where the step is like any other.

    Args:
        record: of a class ('actor'), of its `options` ('chosen') or `remote` ('made'), or of a handle's method ('of').
        step: an attribute, or '()'.
    """
    if record.get("actor") and step == "options":
        return {"kind": "function", "parameters": ANY, "chosen": record}
    if record.get("actor") and step == "remote":
        return _function(record) | {"made": record}
    if step == "()" and "chosen" in record:
        chosen: Mapping[str, Any] = record["chosen"]
        return chosen
    if step == "()" and "made" in record:
        return {"kind": "handle"} | {key: record["made"][key] for key in ("members", "open") if key in record["made"]}
    if record.get("kind") == "method" and step == "remote":
        return _function(record["of"])
    return None


def _function(record: Mapping[str, Any]) -> dict[str, Any]:
    return {"kind": "function"} | {key: record[key] for key in ("parameters",) if key in record}
