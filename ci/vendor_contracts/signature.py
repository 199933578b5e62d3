"""Call signatures as text, so that they can be read, stored and compared without the package they describe.

A signature is written like the parameter list of a `def`, without annotations: `query, key, *, scale=1.0`. Defaults
that are no literals are written `...`.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Sequence

ANY = "*args, **kwargs"
"""The signature of what takes anything."""
_KINDS = inspect.Parameter


def from_arguments(arguments: ast.arguments, bound: bool = False) -> str:
    """The text of a parsed parameter list; `bound` leaves out the first parameter (self, cls)."""
    plain = ast.parse(f"def f({ast.unparse(arguments)}): pass").body[0]
    assert isinstance(plain, ast.FunctionDef)
    args = plain.args
    for argument in [*args.posonlyargs, *args.args, *args.kwonlyargs, args.vararg, args.kwarg]:
        if argument is not None:
            argument.annotation = None
    args.defaults = [_literal(default) for default in args.defaults]
    args.kw_defaults = [default and _literal(default) for default in args.kw_defaults]
    if bound and (first := args.posonlyargs or args.args):
        if len(args.defaults) == len(args.posonlyargs) + len(args.args):
            del args.defaults[0]
        del first[0]
    return ast.unparse(args)


def parse(text: str) -> inspect.Signature:
    """The signature that a text stands for.

    Raises:
        ValueError: the text is no parameter list.
    """
    try:
        (function,) = ast.parse(f"def f({text}): pass").body
    except SyntaxError as error:
        raise ValueError(f"'{text}' is no parameter list") from error
    assert isinstance(function, ast.FunctionDef)
    args = function.args
    positional = [*args.posonlyargs, *args.args]
    required = len(positional) - len(args.defaults)
    parameters = []
    for index, argument in enumerate(positional):
        kind = _KINDS.POSITIONAL_ONLY if index < len(args.posonlyargs) else _KINDS.POSITIONAL_OR_KEYWORD
        parameters.append(_KINDS(argument.arg, kind, default=_KINDS.empty if index < required else ...))
    if args.vararg:
        parameters.append(_KINDS(args.vararg.arg, _KINDS.VAR_POSITIONAL))
    for argument, default in zip(args.kwonlyargs, args.kw_defaults, strict=True):
        value = _KINDS.empty if default is None else ...
        parameters.append(_KINDS(argument.arg, _KINDS.KEYWORD_ONLY, default=value))
    if args.kwarg:
        parameters.append(_KINDS(args.kwarg.arg, _KINDS.VAR_KEYWORD))
    return inspect.Signature(parameters)


def refusal(text: str, positional: int, keywords: Sequence[str], open_ended: bool = False) -> str:
    """Why a call with so many positional and these keyword arguments does not fit; '' where it does.

    Args:
        open_ended: the call also unpacks a sequence or mapping, so that what it leaves out may still be given.
    """
    signature = parse(text)
    bind = signature.bind_partial if open_ended else signature.bind
    try:
        bind(*[None] * positional, **dict.fromkeys(keywords))
    except TypeError as error:
        return str(error)
    return ""


def _literal(node: ast.expr) -> ast.expr:
    try:
        ast.literal_eval(node)
    except (ValueError, TypeError):
        return ast.Constant(...)
    return node
