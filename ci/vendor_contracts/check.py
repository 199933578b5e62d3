"""Holds uses of vendors' names against stored signatures."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from ci.vendor_contracts import actors, signature
from ci.vendor_contracts.contract import Entry
from ci.vendor_contracts.library import PLAIN
from ci.vendor_contracts.usage import Call

Records = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class Verdict:
    """What came of holding one name against the signatures of one stack.

    Args:
        outcome: 'agrees'; 'drift': the real package differs; 'unknown': its source does not tell.
        reason: of the last two, one phrase.
    """

    outcome: Literal["agrees", "drift", "unknown"]
    reason: str = ""


@dataclass(frozen=True)
class Finding:
    """A verdict other than 'agrees' on a use of an entry."""

    entry: Entry
    stack: str
    verdict: Verdict
    where: str


AGREES = Verdict("agrees")


def findings(entries: Iterable[Entry], stack: str, records: Records) -> list[Finding]:
    """Every use in `entries` that the stack's packages do not agree with, or do not tell about."""
    found = []
    for entry in entries:
        if stack not in entry.stacks:
            continue
        seen: dict[Verdict, list[str]] = {}
        for use in entry.uses:
            verdict = judge(records, entry.name, use.call)
            if verdict != AGREES:
                seen.setdefault(verdict, []).append(f"{use.file}:{use.line}")
        found += [Finding(entry, stack, verdict, ", ".join(dict.fromkeys(lines))) for verdict, lines in seen.items()]
    return found


def judge(records: Records, name: str, call: Call | None) -> Verdict:
    """Whether the name exists and, where it is called, takes the arguments."""
    module, steps = _split(records, name)
    if not module:
        return Verdict("drift", f"no module of '{name}' exists")
    members: Mapping[str, Any] = {**records[module].get("types", {}), **records[module]["members"]}
    record: Mapping[str, Any] = {"kind": "module", **records[module]}
    done = module
    for step in steps:
        following = _follow(record, step, members, done)
        if isinstance(following, Verdict):
            return following
        record, done = following, done + ("()" if step == "()" else f".{step}")
    return _judge_call(record, done, call, members) if call is not None else AGREES


def _split(records: Records, name: str) -> tuple[str, list[str]]:
    """The longest stored module that the path starts with, its aliases replaced, and the steps that follow."""
    path = name.partition("()")[0]
    known = [module for module in records if path == module or path.startswith(f"{module}.")]
    if not known:
        return "", []
    module = max(known, key=len)
    rest = name[len(module) :]
    return str(records[module].get("alias", module)), re.findall(r"[^.()]+|\(\)", rest)


def _follow(record: Mapping[str, Any], step: str, members: Mapping[str, Any], done: str) -> Mapping[str, Any] | Verdict:
    """The record one step on, or the verdict that ends the path here."""
    if (turned := actors.follow(record, step)) is not None:
        return turned
    if record.get("kind") == "handle":
        method = _follow({**record, "kind": "class"}, step, members, done)
        return method if isinstance(method, Verdict) else {"kind": "method", "of": method}
    if step == "()":
        if record["kind"] == "class" and "instance" not in record:
            return {**record, "instance": True}
        called = _called(record, members)
        returned = members.get(called.get("returns", ""))
        return {**returned, "instance": True} if returned else {"kind": "value", "returns": called.get("returns", "")}
    if "members" in record:
        if step in record["members"]:
            found: Mapping[str, Any] = record["members"][step]
            return found
        if record.get("dynamic"):
            return Verdict("unknown", f"{done} has no '{step}', but makes names when they are asked for")
        if record.get("open"):
            return Verdict("unknown", f"{done} has bases whose source is not among the pinned packages")
        return Verdict("drift", f"{done} has no '{step}'")
    if PLAIN.fullmatch(record.get("returns", "")):
        return AGREES
    if (made := members.get(record.get("returns", ""))) is not None and made is not record:
        return _follow({**made, "instance": True}, step, members, done)
    return Verdict("unknown", f"the source does not say what {done} is")


def _called(record: Mapping[str, Any], members: Mapping[str, Any]) -> Mapping[str, Any]:
    """What is called where this is: of an instance its `__call__`."""
    if record["kind"] == "value" and "parameters" not in record:
        record = {**members.get(record.get("returns", ""), record), "instance": True}
    if "instance" not in record:
        return record
    method: Mapping[str, Any] = record.get("members", {}).get("__call__", {"kind": "value"})
    return method


def _judge_call(record: Mapping[str, Any], name: str, call: Call, members: Mapping[str, Any]) -> Verdict:
    called = _called(record, members)
    if called.get("returns", "").startswith("Callable[..."):
        return AGREES
    if "parameters" not in called:
        return Verdict("unknown", f"the source does not say how {name} is called")
    problem = signature.refusal(called["parameters"], call.positional, call.keywords, call.open_ended)
    return Verdict("drift", f"{name}({called['parameters']}) does not take {call}: {problem}") if problem else AGREES
