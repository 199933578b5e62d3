"""What a Python module or class defines, read from its syntax tree: definitions by name, never executed."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Import:
    """A name bound by an import; `name` is None where the module itself is bound."""

    module: str
    name: str | None


Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Assign | ast.AnnAssign | ast.AugAssign | Import


@dataclass
class Namespace:
    """Candidate definitions per name, in the order of the source, and modules whose names are all imported."""

    definitions: dict[str, list[Definition]] = field(default_factory=dict)
    stars: list[str] = field(default_factory=list)


def of_module(text: str, module: str, is_package: bool) -> Namespace:
    """The namespace of a module.

    Args:
        text: its source, .py or .pyi.
        module: dotted name; relative imports are resolved against it.
        is_package: whether the source is an `__init__` file.
    """
    namespace = Namespace()
    _collect(ast.parse(text).body, namespace, module if is_package else module.rpartition(".")[0])
    return namespace


def of_class(node: ast.ClassDef) -> Namespace:
    """The namespace of a class body, with attributes that its methods set on `self` or register as buffers, or that its
    `__getattr__` and `__setattr__` compare their argument with."""
    namespace = Namespace()
    _collect(node.body, namespace, "")
    for hook in ("__getattr__", "__setattr__"):
        for method in (one for one in node.body if isinstance(one, ast.FunctionDef) and one.name == hook):
            for name in _compared(method):
                known = ast.AnnAssign(ast.Name(name, ast.Store()), ast.Constant(...), None, 1)
                namespace.definitions.setdefault(name, [ast.copy_location(known, method)])
    for statement in ast.walk(node):
        for target in _targets(statement):
            if isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name) and target.value.id == "self":
                assert isinstance(statement, ast.Assign | ast.AnnAssign | ast.AugAssign)
                namespace.definitions.setdefault(target.attr, [statement])
        match statement:
            case ast.Call(func=ast.Attribute(ast.Name("self"), "register_buffer"), args=[ast.Constant(str(name)), *_]):
                tensor = ast.AnnAssign(ast.Name(name, ast.Store()), ast.Name("Tensor", ast.Load()), None, 1)
                namespace.definitions.setdefault(name, [ast.copy_location(tensor, statement)])
            case _:
                pass
    return namespace


def has_decorator(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef, *names: str) -> bool:
    """Whether one of the decorators has one of these last names (`typing.overload` is 'overload')."""
    return any(_last_name(decorator) in names for decorator in node.decorator_list)


def _collect(body: Sequence[ast.stmt], namespace: Namespace, package: str) -> None:
    for statement in _flat(body):
        match statement:
            case ast.FunctionDef() | ast.AsyncFunctionDef() if not has_decorator(statement, "overload"):
                _add(namespace, statement.name, statement)
            case ast.ClassDef():
                _add(namespace, statement.name, statement)
            case ast.Import():
                for alias in statement.names:
                    bound = alias.asname or alias.name.partition(".")[0]
                    _add(namespace, bound, Import(alias.name if alias.asname else bound, None))
            case ast.ImportFrom():
                origin = _absolute(statement, package)
                for alias in statement.names:
                    if alias.name == "*":
                        namespace.stars.append(origin)
                    else:
                        _add(namespace, alias.asname or alias.name, Import(origin, alias.name))
            case ast.Assign() | ast.AnnAssign() | ast.AugAssign():
                for target in _targets(statement):
                    if isinstance(target, ast.Name):
                        _add(namespace, target.id, statement)


def _flat(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    """Statements of a body and of the conditionals in it; not of functions and classes."""
    for statement in body:
        yield statement
        for block in ("body", "orelse", "finalbody"):
            if not isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                yield from _flat(getattr(statement, block, []))
        for handler in getattr(statement, "handlers", []):
            yield from _flat(handler.body)


def _targets(statement: ast.AST) -> Iterator[ast.expr]:
    if isinstance(statement, ast.Assign):
        for target in statement.targets:
            yield from target.elts if isinstance(target, ast.Tuple | ast.List) else [target]
    elif isinstance(statement, ast.AnnAssign | ast.AugAssign):
        yield statement.target


def _compared(hook: ast.FunctionDef) -> Iterator[str]:
    """Literal names that an attribute hook knows: `if name == "x"`, `name in ("x", "y")`."""
    for node in ast.walk(hook):
        if isinstance(node, ast.Compare):
            for constant in ast.walk(node):
                if (
                    isinstance(constant, ast.Constant)
                    and isinstance(constant.value, str)
                    and constant.value.isidentifier()
                ):
                    yield constant.value


def _add(namespace: Namespace, name: str, definition: Definition) -> None:
    namespace.definitions.setdefault(name, []).append(definition)


def _absolute(statement: ast.ImportFrom, package: str) -> str:
    """The module that a `from` import names; `package` is the one that relative imports start from."""
    if not statement.level:
        return statement.module or ""
    parts = package.split(".")
    parts = parts[: len(parts) - (statement.level - 1)]
    return ".".join([*parts, *([statement.module] if statement.module else [])])


def _last_name(node: ast.expr) -> str:
    if isinstance(node, ast.Call):
        return _last_name(node.func)
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
