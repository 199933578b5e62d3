"""The stored signatures of a stack's modules: what offline checks and the simulated modules of the tests work from.

A module of a package that is not installed for the tests is stored whole, so that a simulation knows every name that
exists. Of others only the names are stored that our code uses.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from ci.vendor_contracts.library import Library, Member

Record = dict[str, Any]


def of_modules(
    library: Library, modules: Mapping[str, Iterable[str]], segments: frozenset[str], whole: Callable[[str], bool]
) -> dict[str, Record]:
    """Module -> {'source', 'members'}, or {'source', 'alias'} where it is another one at run time.

    Args:
        library: sources of the packages.
        modules: module, as our code names it -> names in it that our code uses.
        segments: names of class members that our code uses, of any class.
        whole: whether every name of a module is stored.
    """
    found: dict[str, Record] = {}
    for module, used in sorted(modules.items()):
        source = library.source_of(module)
        assert source is not None
        record: Record = {"source": f"{source[0].distribution} {source[0].version}"}
        record |= {"dynamic": True} if library.is_dynamic(module) else {}
        found[module] = record
        if (alias := library.canonical(module)) != module:
            record["alias"] = alias
        elif whole(module):
            members = library.members(module)
            record["members"] = _Recorder(library, None).module(members)
            mine = {name: members[name] for name in used if name in members}
            if types := _types(library, mine, segments):
                record["types"] = _Recorder(library, segments).module(types)
        else:
            named = {name: member for name in used if (member := library.find(module, name)) is not None}
            recorder = _Recorder(library, segments)
            record |= {"partial": True, "members": recorder.module({**_types(library, named, segments), **named})}
    return found


def modules_used(library: Library, names: Iterable[str]) -> dict[str, set[str]]:
    """Module -> names in it, for dotted paths: of each the longest module that exists.

    A path of which not even the top-level module exists is left out.
    """
    found: dict[str, set[str]] = {}
    for name in names:
        parts = name.partition("()")[0].split(".")
        for length in range(len(parts), 0, -1):
            if library.source_of(module := ".".join(parts[:length])):
                used = found.setdefault(module, set())
                if length < len(parts):
                    used.add(parts[length])
                break
    for module in list(found):
        alias = library.canonical(module)
        if alias != module:
            found.setdefault(alias, set()).update(found[module])
    return found


def dumps(value: Any, depth: int = 0) -> str:
    """JSON in which members stand in a line each."""
    if depth < 4 and isinstance(value, dict) and value:
        inner = [f"{' ' * (depth + 1)}{json.dumps(key)}: {dumps(item, depth + 1)}" for key, item in value.items()]
        text = "{\n" + ",\n".join(inner) + f"\n{' ' * depth}}}"
    else:
        text = json.dumps(value)
    return text + ("\n" if depth == 0 else "")


def _types(library: Library, members: Mapping[str, Member], segments: frozenset[str]) -> dict[str, Member]:
    """The classes that these members, and what our code uses of them, return or are; by the annotation that says so."""
    found: dict[str, Member] = {}
    waiting = list(members.values())
    while waiting:
        member = waiting.pop()
        used = library.class_members(member) if member.kind == "class" else {}
        for one in (member, *(used[name] for name in used if name in segments)):
            made = library.type_of(one) if one.kind in ("function", "value") else None
            if made is not None and not made.enum and one.returns not in found and one.returns not in members:
                found[one.returns] = made
                waiting.append(made)
    return found


class _Recorder:
    """Makes records of members.

    Args:
        library: sources of the packages.
        segments: members of classes to keep; None means all.
    """

    def __init__(self, library: Library, segments: frozenset[str] | None) -> None:
        self._library = library
        self._segments = segments

    def module(self, members: Mapping[str, Member]) -> dict[str, Record]:
        """Records of a module's members; of values also what the class has of which they are instances."""
        found = {}
        for name, member in sorted(members.items()):
            if member.kind != "module":
                found[name] = self._record(member)
                made_of = self._library.type_of(member) if member.kind == "value" else None
                if made_of is not None and not made_of.enum:
                    found[name] |= self._class(made_of)
        return found

    def _record(self, member: Member) -> Record:
        record: Record = {"kind": member.kind}
        if member.parameters is not None:
            record["parameters"] = member.parameters
        if member.returns and member.kind != "class":
            record["returns"] = member.returns
        if member.static:
            record["static"] = True
        if member.kind == "value" and (value := _literal(member)) is not None:
            record["value"] = value
        if member.kind == "class":
            record |= {"enum": True} if member.enum else {}
            record |= {"actor": True} if member.actor else {}
            record |= self._class(member)
        return record

    def _class(self, member: Member) -> Record:
        members = self._library.class_members(member)
        wanted = None if self._segments is None or member.enum else self._segments | {"__call__"}
        kept = [name for name in sorted(members) if wanted is None or name in wanted]
        plain = {name: self._flat(members[name]) for name in kept if members[name].kind != "module"}
        return {"members": plain} | ({} if self._library.bases_known(member) else {"open": True})

    def _flat(self, member: Member) -> Record:
        """A class inside a class is recorded without its members."""
        record = self._record(replace(member, kind="value") if member.kind == "class" else member)
        return record | {"kind": "class"} if member.kind == "class" else record


def _literal(member: Member) -> str | int | float | bool | None:
    if isinstance(member.node, ast.Assign | ast.AnnAssign) and isinstance(member.node.value, ast.Constant):
        value = member.node.value.value
        return value if isinstance(value, str | int | float | bool) else None
    return None
