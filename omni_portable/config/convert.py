"""From plain data (YAML, command line) to typed dataclasses: nothing is guessed, every error names its key."""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import re
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from omni_portable.config.spelled import Spelled, misread
from omni_portable.contracts.errors import ConfigError, OmniPortableError
from omni_portable.contracts.spelling import did_you_mean

T = TypeVar("T")
MISSING = "???"
"""A value the user must give (OmegaConf's spelling)."""


@dataclasses.dataclass(frozen=True)
class Source:
    """Where values come from, so that errors can show them as they were typed.

    Args:
        typed: dotted key -> the override as typed on the command line.
        recipe: the recipe all other values come from.
        keys: every key of the whole configuration, to find one that was put in the wrong section.
        spelled: numbers of the recipe that are not written as they are read, see :mod:`omni_portable.config.spelled`.
    """

    typed: Mapping[str, str] = dataclasses.field(default_factory=dict)
    recipe: str = ""
    keys: Sequence[str] = ()
    spelled: Spelled = dataclasses.field(default_factory=dict)

    def spelling(self, key: str, number: float) -> str:
        """How a number was written, where that is not how it is read; '' otherwise."""
        for end in range(key.count(".") + 1, 0, -1):
            typed = self.typed.get(".".join(key.split(".")[:end]))
            if typed is not None:
                words = re.findall(r"[\w.+-]+", typed.partition("=")[2])
                return "" if str(number) in words else next((word for word in words if _reads(word, number)), "")
        return next((text for text, read in self.spelled.get(key, ()) if read == number), "")

    def describe(self, key: str, value: Any) -> str:
        """How to speak of the value of `key` in an error."""
        parts = key.split(".")
        for end in range(len(parts), 0, -1):
            typed = self.typed.get(".".join(parts[:end]))
            if typed is not None:
                return f"'{typed}' on the command line" + ("" if end == len(parts) else f", at {key}")
        where = f" in {self.recipe}" if self.recipe else ""
        return f"{key}={show(value)}{where}"


def show(value: Any) -> str:
    """A value as a recipe would spell it."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    return str(value)


def _reads(word: str, number: float) -> bool:
    try:
        return int(word) == number
    except ValueError:
        return False


def join(prefix: str, name: object) -> str:
    return f"{prefix}.{name}" if prefix else str(name)


def suggest(wanted: str, known: Iterable[str]) -> str:
    """The closest known names as a remedy, or an empty string; see :mod:`omni_portable.contracts.spelling`."""
    return did_you_mean(wanted, known)


def build(cls: type[T], data: Any, key: str = "", source: Source | None = None) -> T:
    """An instance of the dataclass `cls` from a mapping.

    Args:
        key: dotted path of `data` within the configuration, for messages.
        source: see :class:`Source`.

    Raises:
        ConfigError: an unknown key, a value of the wrong type, or a mandatory value that is missing.
    """
    source = source or Source()
    if not isinstance(data, Mapping):
        raise ConfigError(
            f"{source.describe(key, data)} is a {_kind(data)}, but '{key}' is a section of keys",
            choices=sorted(_fields(cls)),
        )
    fields = _fields(cls)
    for name in data:
        if name not in fields:
            if isinstance(name, str) and "." in name:
                raise _dotted_key(key, name, source)
            raise unknown_key(join(key, name), [join(key, known) for known in fields], source)
    hints = typing.get_type_hints(cls)
    values = {}
    for name, field in fields.items():
        path = join(key, name)
        section = dataclasses.is_dataclass(hints[name])  # one that is left out may have keys that must be given
        value = data[name] if name in data else {} if section else _default(field)
        if value is dataclasses.MISSING or (isinstance(value, str) and value == MISSING):
            raise ConfigError(f"'{path}' has no value", remedy=f"give it in the recipe or add {path}=VALUE")
        values[name] = convert(hints[name], value, path, source) if name in data or section else value
    return _construct(cls, values, key)


def unknown_key(key: str, known: Sequence[str], source: Source | None = None) -> ConfigError:
    """The error for a key that does not exist, with the closest ones that do.

    A key of the same last name in another section ('n' -> 'rollout.n') is preferred to one that is spelled alike.
    """
    source = source or Source()
    typed = next((text for name, text in source.typed.items() if name == key or name.startswith(key + ".")), None)
    where = f" (typed as '{typed}')" if typed else f" (in {source.recipe})" if source.recipe else ""
    last = key.rpartition(".")[2]
    moved = [name for name in source.keys if name.rpartition(".")[2] == last]
    remedy = f"did you mean {' or '.join(repr(name) for name in moved)}?" if moved else suggest(key, known)
    return ConfigError(
        f"unknown configuration key '{key}'{where}",
        remedy=remedy or suggest(key, source.keys) or "remove it, or use one of the keys listed here",
        choices=sorted(known),
    )


def _dotted_key(section: str, name: str, source: Source) -> ConfigError:
    """The error for a key that stands in a recipe as the command line spells it."""
    *outer, last = join(section, name).split(".")
    nested = f"{last}: VALUE"
    for part in reversed(outer):
        nested = f"{part}: {{{nested}}}"
    where = f" (in {source.recipe})" if source.recipe else ""
    return ConfigError(
        f"the key '{name}'{f' of {section!r}' if section else ''}{where} holds a dot; keys of a recipe are nested",
        remedy=f"nest it, as {nested}, or use it on the command line, as {join(section, name)}=VALUE",
    )


def all_keys(schema: type, prefix: str = "") -> list[str]:
    """Every dotted key of a dataclass of dataclasses, sections left out, in the order of declaration."""
    keys: list[str] = []
    for name, hint in typing.get_type_hints(schema).items():
        if dataclasses.is_dataclass(hint) and isinstance(hint, type):
            keys += all_keys(hint, join(prefix, name))
        else:
            keys.append(join(prefix, name))
    return keys


def convert(hint: Any, value: Any, key: str, source: Source) -> Any:
    """`value` as the annotated type `hint`; see :func:`build`."""
    origin = typing.get_origin(hint)
    if hint is Any:
        return value
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return build(hint, value, key, source)
    if origin in (typing.Union, types.UnionType):
        return _union(typing.get_args(hint), value, key, source)
    if origin is typing.Literal:
        return _choice(typing.get_args(hint), value, key, source)
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return hint(_choice([member.value for member in hint], value, key, source))
    if origin in (list, tuple, Sequence) or hint in (list, tuple):
        return _sequence(hint, value, key, source)
    if origin in (dict, Mapping) or hint is dict:
        return _mapping(hint, value, key, source)
    if hint in _SCALARS:
        return _scalar(hint, value, key, source)
    raise TypeError(f"'{key}' is annotated with {hint!r}, which configuration values cannot have")


def _fields(cls: type) -> dict[str, dataclasses.Field[Any]]:
    return {field.name: field for field in dataclasses.fields(cls) if field.init}


def _default(field: dataclasses.Field[Any]) -> Any:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return field.default


def _construct(cls: type[T], values: Mapping[str, Any], key: str) -> T:
    with naming(f"in '{key}'"):  # a dataclass may check its own values
        return cls(**values)


@contextlib.contextmanager
def naming(where: str) -> Iterator[None]:
    """Say where in the configuration an error belongs that was raised by code which cannot know."""
    try:
        yield
    except ConfigError as error:
        raise type(error)(f"{where}: {error.problem}", remedy=error.remedy, choices=error.choices) from error
    except ValueError as error:
        raise ConfigError(f"{where}: {error}") from error


@contextlib.contextmanager
def renaming(keys: Mapping[str, str]) -> Iterator[None]:
    """Speak of the keys that the user wrote, in an error of code that was made for others: key -> the right one."""
    try:
        yield
    except OmniPortableError as error:
        texts = [error.problem, error.remedy]
        for key, right in keys.items():
            texts = [text.replace(key, right) for text in texts]
        raise type(error)(texts[0], remedy=texts[1], choices=error.choices) from error


def _union(members: Sequence[Any], value: Any, key: str, source: Source) -> Any:
    if value is None and type(None) in members:
        return None
    wanted = [member for member in members if member is not type(None)]
    if type(value) in wanted:
        return value
    problem: ConfigError | None = None
    for member in wanted:
        try:
            return convert(member, value, key, source)
        except ConfigError as error:
            problem = problem or error
    assert problem is not None
    if len(wanted) == 1:
        raise problem
    raise ConfigError(f"{source.describe(key, value)}: expected {' or '.join(_name(member) for member in wanted)}")


def _choice(choices: Sequence[Any], value: Any, key: str, source: Source) -> Any:
    if value in choices and type(value) in {type(choice) for choice in choices}:
        return value
    shown = [show(choice) for choice in choices]
    raise ConfigError(
        f"{source.describe(key, value)}: '{show(value)}' is no valid {key}",
        remedy=suggest(show(value), shown),
        choices=shown,
    )


def _sequence(hint: Any, value: Any, key: str, source: Source) -> Any:
    if not isinstance(value, (list, tuple)):
        raise ConfigError(
            f"{source.describe(key, value)}: expected a list, got a {_kind(value)}", remedy=f"write {key}=[A,B]"
        )
    kind = tuple if hint is tuple or typing.get_origin(hint) is tuple else list
    args = typing.get_args(hint)
    if kind is tuple and args and args[-1] is not Ellipsis:
        if len(args) != len(value):
            raise ConfigError(f"{source.describe(key, value)}: expected {len(args)} values, got {len(value)}")
        members: Sequence[Any] = args
    else:
        members = [args[0] if args else Any] * len(value)
    items = zip(members, value, strict=True)
    return kind(convert(member, item, f"{key}[{index}]", source) for index, (member, item) in enumerate(items))


def _mapping(hint: Any, value: Any, key: str, source: Source) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise ConfigError(f"{source.describe(key, value)}: expected a section of keys, got a {_kind(value)}")
    args = typing.get_args(hint)
    member = args[1] if args else Any
    for name in value:
        if not isinstance(name, str):
            raise ConfigError(f"'{key}' has the key {name!r}, which is a {_kind(name)}", remedy="put it in quotes")
    return {name: convert(member, item, join(key, name), source) for name, item in value.items()}


def _to_bool(value: Any) -> bool | None:
    return value if isinstance(value, bool) else None


def _to_int(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _to_float(value: Any) -> float | None:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _to_str(value: Any) -> str | None:
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)  # a folder called 7 needs no quotes
    return value if isinstance(value, str) else None


def _to_path(value: Any) -> Path | None:
    text = _to_str(value)
    return None if text is None else Path(text).expanduser()


_SCALARS: dict[Any, tuple[Callable[[Any], Any], str]] = {
    bool: (_to_bool, "true or false"),
    int: (_to_int, "an integer"),
    float: (_to_float, "a number"),
    str: (_to_str, "a text (put it in quotes)"),
    Path: (_to_path, "a path"),
    type(None): (lambda value: None, "null"),
}


def _scalar(hint: Any, value: Any, key: str, source: Source) -> Any:
    reader, wanted = _SCALARS[hint]
    _refuse_misread(hint, value, key, source)
    result = reader(value)
    if result is None and not (hint is type(None) and value is None):
        if value is None and hint is str:
            last = key.rpartition(".")[2]
            raise ConfigError(
                f"{source.describe(key, value)}: '{key}' must be a text, got null",
                remedy=f"to leave it empty write {key}= on the command line, or {last}: '' in a recipe",
            )
        got = "null" if value is None else f"the {_kind(value)} '{show(value)}'"
        raise ConfigError(f"{source.describe(key, value)}: '{key}' must be {wanted}, got {got}")
    return result


def _refuse_misread(hint: Any, value: Any, key: str, source: Source) -> None:
    """A text of digits that was read as a number, or a number that was read in base 8 or 60."""
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not (text := source.spelling(key, value)):
        return
    is_text = hint in (str, Path)
    if is_text or misread(text):
        quoted = (
            f'put it in quotes: {key.rpartition(".")[2]}: "{text}" in a recipe, \'{key}="{text}"\' on the command line'
        )
        raise ConfigError(
            f"{source.describe(key, text)}: without quotes {text} is read as the number {show(value)}",
            remedy=quoted if is_text else f"write {show(value)} if that is meant, otherwise the number in plain digits",
        )


def _name(hint: Any) -> str:
    return _SCALARS[hint][1] if hint in _SCALARS else str(getattr(hint, "__name__", hint))


def _kind(value: Any) -> str:
    names = {bool: "truth value", int: "integer", float: "number", str: "text", list: "list", tuple: "list"}
    if value is None:
        return "null"
    return "section" if isinstance(value, Mapping) else names.get(type(value), type(value).__name__)
