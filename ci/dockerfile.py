"""A Dockerfile as data: its stages, their instructions, and the shell commands of a RUN."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from io import BytesIO

from dockerfile_parse import DockerfileParser  # type: ignore[import-untyped]

KEYWORDS = frozenset(
    ("ADD", "ARG", "CMD", "COPY", "ENTRYPOINT", "ENV", "EXPOSE", "FROM", "HEALTHCHECK", "LABEL", "MAINTAINER")
    + ("ONBUILD", "RUN", "SHELL", "STOPSIGNAL", "USER", "VOLUME", "WORKDIR")
)
BETWEEN = frozenset(("&&", "||", ";", "|", "&", "(", ")", "{", "}", "!"))
"""What separates one command of a shell line from the next."""


@dataclass(frozen=True)
class Instruction:
    """One instruction: `value` is everything after the keyword, continued lines joined; `line` counts from 1."""

    keyword: str
    value: str
    line: int


@dataclass(frozen=True)
class Stage:
    """One FROM and what follows it: `image` as written, `name` '' where it has none."""

    name: str
    image: str
    line: int
    instructions: tuple[Instruction, ...]

    def each(self, *keywords: str) -> list[Instruction]:
        return [one for one in self.instructions if one.keyword in keywords]

    def settings(self, keyword: str) -> dict[str, str]:
        """Name -> value of all ENV, LABEL or ARG instructions of the stage; '' for an ARG without a value."""
        return {name: value for one in self.each(keyword) for name, value in assignments(one.value)}


@dataclass(frozen=True)
class Dockerfile:
    """A whole file.

    Args:
        args: of the ARG instructions before the first FROM, name -> default; None where there is none.
        stages: in order, at least one; the last one is the image.
    """

    args: Mapping[str, str | None]
    stages: tuple[Stage, ...]

    @property
    def final(self) -> Stage:
        return self.stages[-1]

    def stage(self, name: str) -> Stage | None:
        return next((stage for stage in self.stages if name and stage.name == name), None)


def parse(text: str) -> Dockerfile:
    """Read a Dockerfile.

    Raises:
        ValueError: an instruction that does not exist, a here-document, or no FROM.
    """
    instructions = []
    for entry in DockerfileParser(fileobj=BytesIO(text.encode())).structure:
        keyword, value, line = entry["instruction"], entry["value"], entry["startline"] + 1
        if keyword == "COMMENT":
            continue
        if keyword not in KEYWORDS:
            raise ValueError(f"line {line}: '{keyword}' is no instruction")
        if keyword in ("RUN", "COPY", "ADD") and re.search(r"<<-?['\"]?\w", value):
            raise ValueError(f"line {line}: here-documents cannot be checked; write the commands out, or a file")
        instructions.append(Instruction(keyword, value, line))
    starts = [index for index, one in enumerate(instructions) if one.keyword == "FROM"]
    if not starts:
        raise ValueError("no FROM")
    ends = [*starts[1:], len(instructions)]
    stages = tuple(_stage(instructions[start:end]) for start, end in zip(starts, ends, strict=True))
    return Dockerfile(dict(_global_arg(one) for one in instructions[: starts[0]]), stages)


def _stage(instructions: list[Instruction]) -> Stage:
    parts = [part for part in instructions[0].value.split() if not part.startswith("--")]
    name = parts[2] if len(parts) == 3 and parts[1].upper() == "AS" else ""
    return Stage(name, parts[0], instructions[0].line, tuple(instructions[1:]))


def _global_arg(one: Instruction) -> tuple[str, str | None]:
    name, equal, value = one.value.partition("=")
    return name.strip(), value.strip().strip("\"'") if equal else None


def assignments(value: str) -> Iterator[tuple[str, str]]:
    """(name, value) pairs of an ENV, LABEL or ARG instruction, quotes removed."""
    for part in shlex.split(value):
        name, _, text = part.partition("=")
        yield name, text


def expand(text: str, values: Mapping[str, str]) -> str:
    """Replace ${NAME} and $NAME; a name without a value stays."""
    return re.sub(r"\$\{?(\w+)\}?", lambda match: values.get(match[1], match[0]), text)


def exec_form(value: str) -> list[str] | None:
    """The arguments of a CMD, ENTRYPOINT or RUN written as a JSON list; None where it is a shell line."""
    if not value.strip().startswith("["):
        return None
    try:
        found = json.loads(value)
    except json.JSONDecodeError:
        return None
    return found if isinstance(found, list) and all(isinstance(one, str) for one in found) else None


def commands(run: Instruction) -> list[list[str]]:
    """The commands of a RUN as argument lists, without the RUN's own options.

    Raises:
        ValueError: quotes that do not close.
    """
    listed = exec_form(run.value)
    if listed is not None:
        return [listed]
    lexer = shlex.shlex(run.value, posix=True, punctuation_chars=True)
    lexer.commenters, lexer.whitespace_split = "", True
    found: list[list[str]] = [[]]
    for token in lexer:
        if token in BETWEEN:
            found.append([])
        elif found[-1] or not token.startswith("--"):
            found[-1].append(token)
    return [command for command in found if command]
