"""Looks up dotted names in the sources of vendor packages, through re-exports, classes and operator tables."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Literal

from ci.vendor_contracts import namespace, signature
from ci.vendor_contracts.namespace import Definition, Import, Namespace
from ci.vendor_contracts.tree import Tree

Kind = Literal["function", "class", "value", "module"]
HIDDEN = frozenset(
    ("__all__", "__getattr__", "__dir__", "__path__", "__file__", "__doc__", "annotations", "TYPE_CHECKING")
)
"""Names of modules that are nobody's interface."""
PLAIN = re.compile(r"(int|float|bool|str|bytes|tuple|list|dict|set|None)(\[.*\])?|.*\bTensor\b.*", re.IGNORECASE)
"""Types that are no vendor's: what is done with such a value is not part of a contract."""
DEPTH = 12
"""Longest chain of re-exports that is followed."""


@dataclass(frozen=True)
class Member:
    """A name in a vendor package.

    Args:
        kind: what it is; properties and attributes are values.
        parameters: how it is called, see `signature`; None where the source does not tell.
        returns: what a function says it returns, what a value says it is or is made by; '' where neither says.
        module: where it is defined; of a module, the module.
        where: distribution, file and line.
        enum: the class is an enumeration.
        static: a method that is called on the class itself.
        actor: the class is decorated by `ray.remote`, see `actors`.
        node: its syntax tree, where it has one.
    """

    kind: Kind
    parameters: str | None
    module: str
    where: str
    returns: str = ""
    enum: bool = False
    static: bool = False
    actor: bool = False
    node: ast.AST | None = field(default=None, repr=False, compare=False)


class Library:
    """Sources of several distributions.

    Args:
        trees: in the order in which they are searched.
        operators: module -> (operator -> parameters) for functions that compiled code registers.
        aliases: module -> the module it is at run time ('torch.npu' -> 'torch_npu.npu').
    """

    def __init__(
        self,
        trees: Sequence[Tree],
        operators: Mapping[str, Mapping[str, str]] | None = None,
        aliases: Mapping[str, str] | None = None,
    ) -> None:
        self._trees = trees
        self._operators = operators or {}
        self._aliases = aliases or {}
        self._namespace = cache(self._read_namespace)
        self._of_class = cache(namespace.of_class)
        self._lineage = cache(self._find_lineage)
        self.source_of = cache(self._find_source)

    def canonical(self, module: str) -> str:
        """The name under which a module is defined."""
        return self._aliases.get(module, module)

    def _find_source(self, module: str) -> tuple[Tree, str] | None:
        """The tree and file that define a module; None where none does."""
        stem = self._aliases.get(module, module).replace(".", "/")
        for tree in self._trees:
            for name in (f"{stem}.py", f"{stem}/__init__.py", f"{stem}.pyi", f"{stem}/__init__.pyi"):
                if name in tree.names:
                    return tree, name
        return None

    def find(self, module: str, name: str) -> Member | None:
        """What `name` (dotted: a function, a class, a method, a submodule) is in `module`; None where it is not.

        Raises:
            LookupError: the module itself does not exist.
        """
        module = self._aliases.get(module, module)
        if self.source_of(module) is None:
            raise LookupError(f"no module '{module}'")
        member: Member | None = Member("module", None, module, module)
        for part in name.split(".") if name else ():
            if member is None:
                return None
            member = self._step(member, part)
        return member

    def members(self, module: str) -> dict[str, Member]:
        """Every name of a module, without names that only its own imports of other packages bind."""
        module = self._aliases.get(module, module)
        found: dict[str, Member] = {}
        for name in self._names(module):
            member = self._module_member(module, name)
            if member is not None and name not in HIDDEN:
                found[name] = member
        return found

    def class_members(self, member: Member) -> dict[str, Member]:
        """Names of a class and of those of its bases whose source is here; dunder methods other than calls left out."""
        found: dict[str, Member] = {}
        for module, node in self._bases(member):
            for name in self._of_class(node).definitions:
                if name not in found and not (name.startswith("__") and name != "__call__"):
                    found[name] = self._class_member(module, node, name) or found[name]
        return found

    def type_of(self, member: Member) -> Member | None:
        """The class that a function returns or that a value is an instance of; None where its source is not here, and
        for tensors and Python's own types, which are no vendor's."""
        name = _without_none(member.returns)
        known = name and not PLAIN.fullmatch(name)
        found = self._lookup(member.module, name) if known and _is_dotted(name) else None
        if found is not None and found.kind == "function" and member.kind == "value":  # made by a call of it
            return self.type_of(found)
        return found if found is not None and found.kind == "class" else None

    def is_dynamic(self, module: str) -> bool:
        """Whether the module may make names when they are asked for: it has a `__getattr__`, or replaces itself."""
        module = self._aliases.get(module, module)
        source = self.source_of(module)
        text = (source[0].text(source[1]) if source else None) or ""
        return "__getattr__" in self._namespace(module).definitions or "sys.modules[__name__] =" in text

    def bases_known(self, member: Member) -> bool:
        """Whether the sources of all bases of a class are here, so that its members are complete."""
        return all(base is not None for _, node in self._bases(member) for base in self._base_members(_, node))

    def _step(self, member: Member, part: str) -> Member | None:
        if member.kind == "module":
            return self._module_member(member.module, part)
        if member.kind == "class":
            for module, node in self._bases(member):
                found = self._class_member(module, node, part)
                if found is not None:
                    return found
        return None

    def _names(self, module: str, depth: int = 0) -> Iterator[str]:
        space = self._namespace(module)
        yield from space.definitions
        yield from self._operators.get(module, ())
        for star in space.stars if depth < DEPTH else ():
            if self.source_of(star):
                yield from (name for name in self._names(star, depth + 1) if not name.startswith("_"))

    def _module_member(self, module: str, name: str, depth: int = 0) -> Member | None:
        module = self._aliases.get(module, module)
        if depth > DEPTH or self.source_of(module) is None:
            return None
        space = self._namespace(module)
        fallback: Member | None = None
        for definition in space.definitions.get(name, ()):
            member = self._from_definition(module, name, definition, depth)
            if member is not None and member.kind != "value":
                return member
            fallback = fallback or member
        for star in reversed(space.stars):
            if fallback is None and self._may_define(star, name):
                fallback = self._module_member(star, name, depth + 1)
        if fallback is None and name in self._operators.get(module, {}):
            return Member("function", self._operators[module][name], module, f"operator registered for {module}")
        if fallback is None and self.source_of(f"{module}.{name}"):
            return Member("module", None, f"{module}.{name}", f"{module}.{name}")
        return fallback

    def _may_define(self, module: str, name: str) -> bool:
        """Whether parsing the module is worth while: most of those that are star-imported do not have the name."""
        source = self.source_of(module)
        text = source[0].text(source[1]) if source else None
        return text is not None and (name in text or " import *" in text or name in self._operators.get(module, {}))

    def _from_definition(self, module: str, name: str, definition: Definition, depth: int) -> Member | None:
        if not isinstance(definition, Import):
            return self._member(module, definition)
        if definition.name is None:
            known = self.source_of(definition.module)
            return Member("module", None, definition.module, definition.module) if known else None
        if self.source_of(definition.module) is None:
            return None
        return self._module_member(definition.module, definition.name, depth + 1)

    def _member(self, module: str, definition: ast.AST, bound: bool = False) -> Member:
        where = self._where(module, definition)
        if isinstance(definition, ast.FunctionDef | ast.AsyncFunctionDef):
            if namespace.has_decorator(definition, "property", "cached_property", "classproperty", "setter"):
                return Member("value", None, module, where, node=definition)
            parameters = signature.from_arguments(definition.args, bound)
            return Member("function", parameters, module, where, _returned(definition.returns), node=definition)
        if isinstance(definition, ast.ClassDef):
            member = Member("class", None, module, where, node=definition)
            enum = any(_is_enum(base) for _, node in self._bases(member) for base in node.bases)
            parameters_or_none = "value" if enum else self._constructor(member)
            actor = namespace.has_decorator(definition, "remote")
            name = definition.name
            return Member("class", parameters_or_none, module, where, name, enum, actor=actor, node=definition)
        return Member("value", None, module, where, _value_type(definition), node=definition)

    def _class_member(self, module: str, node: ast.ClassDef, name: str) -> Member | None:
        definitions = self._of_class(node).definitions.get(name)
        if not definitions:
            return None
        first = definitions[0]
        if isinstance(first, Import):
            return None
        static, of_class = (
            isinstance(first, ast.FunctionDef) and namespace.has_decorator(first, decorator)
            for decorator in ("staticmethod", "classmethod")
        )
        return replace(self._member(module, first, bound=not static), static=static or of_class)

    def _constructor(self, member: Member) -> str | None:
        """Parameters of a class; None where a base that may define them is not here."""
        fields: list[str] = []
        lineage = self._bases(member)
        all_fields = any(namespace.has_decorator(node, "dataclass_transform") for _, node in lineage)
        for module, node in lineage:
            space = self._of_class(node)
            for method in ("__init__", "__new__"):
                for definition in space.definitions.get(method, ()):
                    if isinstance(definition, ast.FunctionDef):
                        return signature.from_arguments(definition.args, bound=True)
            if any(base is None for base in self._base_members(module, node)):
                return None
            if all_fields or namespace.has_decorator(node, "dataclass", "config") or _is_struct(node):
                fields = [*_fields(node), *fields]
        return ", ".join(["*", *dict.fromkeys(fields)]) if fields else ""

    def _bases(self, member: Member) -> list[tuple[str, ast.ClassDef]]:
        """The class and its bases whose source is here, each once, nearest first."""
        return self._lineage(member.module, member.node) if isinstance(member.node, ast.ClassDef) else []

    def _find_lineage(self, module: str, node: ast.ClassDef) -> list[tuple[str, ast.ClassDef]]:
        found = {id(node): (module, node)}
        for base in self._base_members(module, node):
            for inherited in self._bases(base) if base is not None else ():
                found.setdefault(id(inherited[1]), inherited)
        return list(found.values())

    def _base_members(self, module: str, node: ast.ClassDef) -> list[Member | None]:
        names = [ast.unparse(base).partition("[")[0] for base in node.bases]
        plain = {
            "object",
            "ABC",
            "abc.ABC",
            "Generic",
            "Protocol",
            "typing.Generic",
            "Enum",
            "NamedTuple",
            "str",
            "int",
        }
        return [self._lookup(module, name) for name in names if name not in plain]

    def _lookup(self, module: str, dotted: str) -> Member | None:
        first, _, rest = dotted.partition(".")
        member: Member | None = None
        for definition in self._namespace(module).definitions.get(first, []):
            if isinstance(definition, ast.ClassDef):  # without its constructor, which asks for its bases
                member = Member("class", None, module, self._where(module, definition), node=definition)
        member = member or self._module_member(module, first)
        for part in rest.split(".") if rest else ():
            member = self._step(member, part) if member else None
        return member

    def _where(self, module: str, node: ast.AST) -> str:
        source = self.source_of(module)
        assert source is not None
        return f"{source[0].distribution} {source[0].version}, {source[1]}:{getattr(node, 'lineno', 0)}"

    def _read_namespace(self, module: str) -> Namespace:
        source = self.source_of(module)
        if source is None:
            return Namespace()
        tree, name = source
        text = tree.text(name)
        assert text is not None
        return namespace.of_module(text, module, name.rpartition("/")[2].startswith("__init__."))


def _returned(annotation: ast.expr | None) -> str:
    if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
        return annotation.value
    return ast.unparse(annotation) if annotation is not None else ""


def _value_type(definition: ast.AST) -> str:
    """The annotation of a value, or the callee of the call that makes it."""
    if isinstance(definition, ast.AnnAssign) and not isinstance(definition.annotation, ast.Constant):
        return _returned(definition.annotation)
    value = definition.value if isinstance(definition, ast.Assign | ast.AnnAssign) else None
    return ast.unparse(value.func) if isinstance(value, ast.Call) else ""


def _without_none(annotation: str) -> str:
    """`X` of `Optional[X]` and `X | None`."""
    text = annotation.removesuffix(" | None").strip()
    for name in ("Optional[", "typing.Optional["):
        text = text.removeprefix(name).removesuffix("]") if text.startswith(name) else text
    return text


def _is_dotted(text: str) -> bool:
    return all(part.isidentifier() for part in text.split("."))


def _is_enum(base: ast.expr) -> bool:
    return ast.unparse(base).rpartition(".")[2] in ("Enum", "IntEnum", "StrEnum", "Flag", "IntFlag")


def _is_struct(node: ast.ClassDef) -> bool:
    return any(ast.unparse(base).rpartition(".")[2] in ("NamedTuple", "Struct", "BaseModel") for base in node.bases)


def _fields(node: ast.ClassDef) -> list[str]:
    """Fields of a dataclass as keyword parameters."""
    fields = []
    for statement in node.body:
        if not isinstance(statement, ast.AnnAssign) or "ClassVar" in ast.unparse(statement.annotation):
            continue
        if isinstance(statement.target, ast.Name):
            fields.append(statement.target.id + ("=..." if statement.value is not None else ""))
    return fields
