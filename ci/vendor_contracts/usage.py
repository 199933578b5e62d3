"""Every use of a vendor's name in our source: imports, attribute chains and calls, found in the syntax tree.

A use is named by its dotted path at run time, whatever it was imported as: `from vllm.x import Y; Y.get().run(tag=1)`
uses `vllm.x.Y`, calls `vllm.x.Y.get` and calls `vllm.x.Y.get().run` with the keyword `tag`. Variables that were
assigned a vendor's object, and parameters that are annotated with a vendor's class, are followed inside the function;
attributes of `self` that only ever hold one vendor's object, inside the class. Where a value is annotated with one of
our protocols, every method of the protocol is used, with the parameters it declares.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

VENDORS = (
    "aiter",
    "amdsmi",
    "diffusers",
    "fa3_fwd",
    "flash_attn",
    "flash_attn_interface",
    "kernels",
    "megatron",
    "mindiesd",
    "pynvml",
    "ray",
    "sageattention",
    "tensordict",
    "torch.accelerator",
    "torch.backends",
    "torch.cuda",
    "torch.npu",
    "torch.version",
    "torch_npu",
    "transfer_queue",
    "transformers",
    "veomni",
    "vllm",
    "vllm_ascend",
    "vllm_omni",
    "xformers",
)
"""Packages and modules whose every use counts; torch itself only where it speaks of a device."""
OPAQUE = ("ray.get", "ray.get_actor")
"""Calls that hand out somebody else's object: what is done with it is no part of their package's contract."""
FUNCTIONS = ast.FunctionDef | ast.AsyncFunctionDef
Protocols = Mapping[str, ast.ClassDef]


@dataclass(frozen=True, order=True)
class Call:
    """The form of a call: positional arguments, keyword names, and whether it unpacks more (`*x`, `**x`)."""

    positional: int = 0
    keywords: tuple[str, ...] = ()
    open_ended: bool = False

    def __str__(self) -> str:
        parts = [str(self.positional)] if self.positional else []
        return (
            f"({', '.join([*parts, *(f'{name}=' for name in self.keywords), *(['...'] if self.open_ended else [])])})"
        )


@dataclass(frozen=True)
class Use:
    """One use of a vendor's name.

    Args:
        name: dotted path; '()' stands for the result of a call.
        call: how it is called; None where it is only read or imported.
        file: path below the root.
        scope: qualified name of the function or class around it, '' at module level.
        line: in the file.
        probed: the file asks with `hasattr` first, so that the name may be missing in some versions.
    """

    name: str
    call: Call | None
    file: str
    scope: str
    line: int
    probed: bool = False


def protocols(trees: Sequence[ast.Module]) -> Protocols:
    """Name -> class of every `typing.Protocol` that these modules define."""
    return {
        node.name: node
        for tree in trees
        for node in tree.body
        if isinstance(node, ast.ClassDef) and any(ast.unparse(base) == "Protocol" for base in node.bases)
    }


def uses(tree: ast.Module, file: str, known: Protocols) -> list[Use]:
    """All uses in a module, in the order of the source."""
    finder = _Finder(file, known)
    finder.block(tree.body, {}, "")
    return [replace(use, probed=any(_below(use.name, name) for name in finder.probed)) for use in finder.found]


def is_vendor(name: str) -> bool:
    """Whether a dotted path belongs to a vendor."""
    return any(_below(name, vendor) for vendor in VENDORS)


class _Finder:
    """Walks a module; names are looked up in the scope around them."""

    def __init__(self, file: str, known: Protocols) -> None:
        self.file = file
        self.known = known
        self.found: list[Use] = []
        self.probed: set[str] = set()
        self.held: dict[str, set[str]] = {}

    def block(self, body: Sequence[ast.stmt], names: dict[str, str], scope: str, returns: str = "") -> None:
        for statement in body:
            self.statement(statement, names, scope, returns)

    def statement(self, node: ast.stmt, names: dict[str, str], scope: str, returns: str) -> None:
        match node:
            case ast.Import() | ast.ImportFrom():
                self.imported(node, names, scope)
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                self.function(node, names, scope)
            case ast.ClassDef():
                for outside in (*node.bases, *node.decorator_list, *(k.value for k in node.keywords)):
                    self.expression(outside, names, scope)
                outer = {name: path for name, path in names.items() if not name.startswith("self.")}
                self.block(node.body, outer | self.attributes(node, outer), _join(scope, node.name))
            case ast.Assign() | ast.AnnAssign() | ast.Return():
                self.assigned(node, names, scope, returns)
            case _:
                for child in ast.iter_child_nodes(node):
                    self.child(child, names, scope, returns)

    def child(self, node: ast.AST, names: dict[str, str], scope: str, returns: str) -> None:
        if isinstance(node, ast.stmt):
            self.statement(node, names, scope, returns)
        elif isinstance(node, ast.expr):
            self.expression(node, names, scope)
        else:  # handlers, with items, match cases
            for inner in ast.iter_child_nodes(node):
                self.child(inner, names, scope, returns)

    def function(self, node: FUNCTIONS, names: dict[str, str], scope: str) -> None:
        arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs, node.args.vararg, node.args.kwarg]
        outside = [*node.decorator_list, *node.args.defaults, *node.args.kw_defaults, node.returns]
        for expression in (*outside, *(argument.annotation for argument in arguments if argument)):
            if expression is not None:
                self.expression(expression, names, scope)
        inner = {name: path for name, path in names.items() if all(not a or a.arg != name for a in arguments)}
        for argument in arguments:
            if argument and (path := self.instance(argument.annotation, names)):
                inner[argument.arg] = path
        self.block(node.body, inner, _join(scope, node.name), _protocol_name(node.returns))

    def attributes(self, node: ast.ClassDef, names: dict[str, str]) -> dict[str, str]:
        """'self.x' -> path, where everything that the class assigns to it (but None) is the same vendor's object."""
        scout = _Finder(self.file, self.known)
        scout.block(node.body, dict(names), "")
        for statement in node.body:
            if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
                scout.hold(statement.target.id, scout.instance(statement.annotation, names))
        return {f"self.{name}": path for name, (path, *more) in scout.held.items() if path and not more}

    def hold(self, name: str, path: str) -> None:
        self.held.setdefault(name, set()).add(path if path and is_vendor(path) else "")

    def instance(self, annotation: ast.expr | None, names: Mapping[str, str]) -> str:
        """The path of an instance of the vendor's class that an annotation names; '' where it names none."""
        match annotation:
            case ast.Constant(str(text)):
                return self.instance(ast.parse(text, mode="eval").body, names)
            case ast.BinOp(left=left, op=ast.BitOr(), right=ast.Constant(None)):
                return self.instance(left, names)
            case ast.Name() | ast.Attribute():
                path = self.path(annotation, names)
                return f"{path}()" if path and is_vendor(path) else ""
            case _:
                return ""

    def imported(self, node: ast.Import | ast.ImportFrom, names: dict[str, str], scope: str) -> None:
        for alias in node.names:
            if isinstance(node, ast.Import):
                bound, path = alias.asname or alias.name.partition(".")[0], alias.name
                names[bound] = path if alias.asname else bound
            elif node.level:
                continue
            else:
                path = f"{node.module}.{alias.name}"
                names[alias.asname or alias.name] = path
            self.emit(path, None, node, scope)

    def assigned(
        self, node: ast.Assign | ast.AnnAssign | ast.Return, names: dict[str, str], scope: str, returns: str
    ) -> None:
        for child in ast.iter_child_nodes(node):
            if not (isinstance(child, ast.Name) and isinstance(child.ctx, ast.Store)):
                self.child(child, names, scope, returns)
        path = self.path(node.value, names) if node.value else ""
        protocol = _protocol_name(node.annotation) if isinstance(node, ast.AnnAssign) else returns
        if path and is_vendor(path) and not isinstance(node, ast.Assign) and protocol in self.known:
            self.fulfil(path, self.known[protocol], node, scope)
        targets = (
            [] if isinstance(node, ast.Return) else [node.target] if isinstance(node, ast.AnnAssign) else node.targets
        )
        if isinstance(node, ast.AnnAssign) and not path:
            path = self.instance(node.annotation, names)
        for target in targets:
            self.bind(target, node.value, path, names)

    def bind(self, target: ast.expr, value: ast.expr | None, path: str, names: dict[str, str]) -> None:
        """What a name, or an attribute of `self`, stands for from here on."""
        match target:
            case ast.Name(id=name):
                names[name] = path
            case ast.Attribute(value=ast.Name("self"), attr=name) if not _is_none(value):
                self.hold(name, path)
            case ast.Tuple(elts=parts):
                values = value.elts if isinstance(value, ast.Tuple) and len(value.elts) == len(parts) else []
                for index, part in enumerate(parts):
                    one = values[index] if values else None
                    self.bind(part, one, self.path(one, names) if one else "", names)
            case _:
                pass

    def fulfil(self, path: str, protocol: ast.ClassDef, node: ast.AST, scope: str) -> None:
        """The value stands for a protocol, so what the protocol declares is used."""
        for method in protocol.body:
            if isinstance(method, FUNCTIONS):
                args = method.args
                keywords = tuple(argument.arg for argument in [*args.args, *args.kwonlyargs] if argument.arg != "self")
                call = Call(max(0, len(args.posonlyargs) - 1), keywords, bool(args.vararg or args.kwarg))
                self.emit(f"{path}.{method.name}", call, node, scope)
            elif isinstance(method, ast.AnnAssign) and isinstance(method.target, ast.Name):
                self.emit(f"{path}.{method.target.id}", None, node, scope)

    def expression(self, node: ast.expr, names: dict[str, str], scope: str) -> None:
        path = self.path(node, names)
        if isinstance(node, ast.Call):
            self.probe(node, names, scope)
            if callee := self.path(node.func, names):
                self.emit(callee, _call(node), node, scope)
                self.base(node.func, names, scope)
            else:
                self.expression(node.func, names, scope)
            for argument in (*node.args, *(keyword.value for keyword in node.keywords)):
                self.expression(argument, names, scope)
        elif path:
            self.emit(path, None, node, scope)
            self.base(node, names, scope)
        else:
            self.inner(node, names, scope)

    def inner(self, node: ast.AST, names: dict[str, str], scope: str) -> None:
        """Parts of an expression that is no vendor's path; what lambdas and comprehensions bind hides outer names."""
        bound = (
            {n.arg for n in ast.walk(node.args) if isinstance(n, ast.arg)} if isinstance(node, ast.Lambda) else set()
        )
        for generator in getattr(node, "generators", []):
            bound |= {name.id for name in ast.walk(generator.target) if isinstance(name, ast.Name)}
        names = {name: path for name, path in names.items() if name not in bound}
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                self.expression(child, names, scope)
            else:
                self.inner(child, names, scope)

    def base(self, node: ast.expr, names: dict[str, str], scope: str) -> None:
        """The call that an attribute chain starts from, if it does."""
        while isinstance(node, ast.Attribute | ast.Await):
            node = node.value
        if isinstance(node, ast.Call):
            self.expression(node, names, scope)

    def probe(self, node: ast.Call, names: dict[str, str], scope: str) -> None:
        """`hasattr(x, "name")` and `getattr(x, "name"[, default])` with a literal name, and imports by literal name."""
        match node.func, node.args:
            case ast.Name("hasattr" | "getattr" as function), [owner, ast.Constant(str(name)), *default]:
                if path := self.path(owner, names):
                    if function == "hasattr" or default:
                        self.probed.add(f"{path}.{name}")
                    self.emit(f"{path}.{name}", None, node, scope)
            case ((ast.Name("import_module") | ast.Attribute(attr="import_module")), [ast.Constant(str(name)), *_]):
                self.emit(name, None, node, scope)
            case _:
                pass

    def path(self, node: ast.expr, names: Mapping[str, str]) -> str:
        """The dotted path of an expression; '' where it is none, or none that starts from an import."""
        match node:
            case ast.Name(id=name):
                return names.get(name, "")
            case ast.Attribute(value=ast.Name("self"), attr=attribute) if f"self.{attribute}" in names:
                return names[f"self.{attribute}"]
            case ast.Attribute(value=value, attr=attribute):
                base = self.path(value, names)
                return f"{base}.{attribute}" if base else ""
            case ast.Call(func=function):
                base = self.path(function, names)
                return f"{base}()" if base and is_vendor(base) and base not in OPAQUE else ""
            case ast.Await(value=value):
                return self.path(value, names)
            case _:
                return ""

    def emit(self, name: str, call: Call | None, node: ast.AST, scope: str) -> None:
        if is_vendor(name) and not (call is None and name.endswith("()")):  # a result that is passed on
            self.found.append(Use(name, call, self.file, scope, getattr(node, "lineno", 0)))


def _call(node: ast.Call) -> Call:
    starred = [argument for argument in node.args if isinstance(argument, ast.Starred)]
    keywords = tuple(sorted(keyword.arg for keyword in node.keywords if keyword.arg))
    return Call(len(node.args) - len(starred), keywords, bool(starred) or any(not k.arg for k in node.keywords))


def _protocol_name(annotation: ast.expr | None) -> str:
    if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
        return annotation.value.rpartition(".")[2]
    return ast.unparse(annotation).rpartition(".")[2] if annotation is not None else ""


def _is_none(value: ast.expr | None) -> bool:
    return isinstance(value, ast.Constant) and value.value is None


def _join(scope: str, name: str) -> str:
    return f"{scope}.{name}" if scope else name


def _below(name: str, parent: str) -> bool:
    return name == parent or name.startswith((f"{parent}.", f"{parent}()"))
