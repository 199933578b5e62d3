"""What a kind of dataset is: the columns of its rows, how published rows become them, what else must hold."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from omni_portable.config.shown import shown
from omni_portable.contracts.errors import DataError
from omni_portable.contracts.media import MediaArtifact, Modality
from omni_portable.data.decode import Content
from omni_portable.data.sources import Samples, Text, source_of, walk
from omni_portable.data.verl import is_chat, shown_text, user_text, without_placeholders

ColumnKind = Literal["text", "texts", "number", "image", "video", "audio"]
MEDIA: Mapping[str, Modality] = {"image": "image", "video": "video", "audio": "audio"}
"""Kinds of columns that hold media."""


@dataclass(frozen=True)
class Column:
    """A field of every converted row; `required` ones are there and filled."""

    name: str
    kind: ColumnKind
    required: bool = True


@dataclass(frozen=True)
class LeftOut:
    """A row that is sound but not wanted, and why in a word or two."""

    reason: str


Values = Mapping[str, Any]
"""Column -> text, texts, number, or the content of a medium (a path or bytes)."""
Artifacts = Mapping[str, MediaArtifact]


def _nothing(values: Values, media: Artifacts, where: str) -> None:
    """No further condition."""


@dataclass(frozen=True)
class Kind:
    """One kind of dataset.

    Args:
        name: on the command line.
        summary: one line for people.
        takes: which published forms are understood.
        columns: of converted rows.
        convert: a source row -> its values, or why it is left out.
        check: conditions beyond the columns', on values and decoded media; raises `DataError` that begins with `where`.
        once: column whose values may not repeat; later rows are left out.
        recipe: keys of a recipe that use it, nested, beside `data.train`. `data.media` are those that the columns may
            hold; see :meth:`keys`.
    """

    name: str
    summary: str
    takes: str
    columns: tuple[Column, ...]
    convert: Callable[[SourceRow], Values | LeftOut]
    check: Callable[[Values, Artifacts, str], None] = _nothing
    once: str = ""
    recipe: Mapping[str, Any] = field(default_factory=dict)

    def keys(self, file: str, filled: Mapping[str, int], rows: int) -> dict[str, Any]:
        """Keys of a recipe that trains on a converted file, nested as in YAML.

        Args:
            file: for `data.train`.
            filled: column -> in how many of the file's rows it is filled; media in none are left out, and those that
                are not in all are optional.
            rows: of the file.
        """
        rest = dict(self.recipe)
        data = dict(rest.pop("data", {}))
        media = {name: dict(keys) for name, keys in data.pop("media", {}).items() if filled.get(name)}
        for name, keys in media.items():
            if filled[name] < rows:
                keys["optional"] = True
        return {"data": {"train": file, **({"media": media} if media else {}), **data}, **rest}


@dataclass(frozen=True)
class SourceRow:
    """A row of a source file; every complaint names file, row and field.

    Args:
        row: as it was read.
        where: file and row number.
        folder: what its relative paths are relative to.
        media_root: another folder where its paths may begin, absolute ones too.
    """

    row: Mapping[str, Any]
    where: str
    folder: Path
    media_root: Path | None = None

    def error(self, name: str, problem: str, remedy: str = "") -> DataError:
        return DataError(f"{self.where}: field '{name}' {problem}", remedy=remedy)

    def text(self, *names: str) -> str:
        """The first of the fields that is filled, as text; chat messages give the user's.

        Raises:
            DataError: none is filled, or one is no text.
        """
        for name in names:
            value = self.row.get(name)
            if is_chat(value):
                return user_text(value, self.where, name)
            if value is None or (isinstance(value, str) and not value.strip()):
                continue
            if isinstance(value, bool) or not isinstance(value, str | int | float):
                raise self.error(name, f"holds {shown(value)}, which is no text")
            return str(value).strip()
        raise DataError(
            f"{self.where}: field '{' or '.join(names)}' is missing or empty", choices=sorted(map(str, self.row))
        )

    def prompt(self, *names: str) -> str:
        """As :meth:`text`, without placeholders of media at its beginning: a model is shown them before the text.

        Raises:
            DataError: as :meth:`text`, or a placeholder in the middle.
        """
        return without_placeholders(self.text(*names), self.where, self._filled(names))

    def question(self, *names: str, media: Sequence[str]) -> str:
        """As :meth:`prompt`, for models that read media amid the text: there placeholders may stand anywhere.

        Args:
            media: 'image', 'video' or 'audio' of each medium of the row.

        Raises:
            DataError: as :meth:`text`, or placeholders amid the text that are not those of the media.
        """
        return shown_text(self.text(*names), media, self.where, self._filled(names))

    def _filled(self, names: Sequence[str]) -> str:
        return next((name for name in names if self.row.get(name) not in (None, "")), names[0])

    def optional_text(self, *names: str) -> str | None:
        """As :meth:`text`, or None where none is filled."""
        return self.text(*names) if any(self.row.get(name) not in (None, "") for name in names) else None

    def number(self, name: str, default: float | None = None) -> float:
        """A number; `default` where the field is empty (None: that is an error)."""
        value = self.row.get(name, default)
        value = default if value is None else value
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.error(name, f"holds {shown(value)}, which is no number")
        return float(value)

    def media(self, *paths: str, folders: Sequence[str] = ("",)) -> Content:
        """The medium in the first of the fields ('images.0') that is filled.

        Args:
            folders: below the source's own, where relative paths may begin.

        Raises:
            DataError: none is filled, or the file does not exist.
        """
        found = self.optional_media(*paths, folders=folders)
        if found is None:
            known = sorted(map(str, self.row))
            raise DataError(f"{self.where}: field '{' or '.join(paths)}' is missing or empty", choices=known)
        return found

    def optional_media(self, *paths: str, folders: Sequence[str] = ("",)) -> Content | None:
        """As :meth:`media`, or None where none is filled."""
        for path in paths:
            name, _, rest = path.partition(".")
            where = f"{self.where}: field '{path}'"
            value = walk(self.row.get(name), rest, where)
            source = source_of(value, where, self.folder, lambda text: self._places(text, folders))
            if isinstance(source, Samples | Text):
                raise DataError(f"{where}: give sound as a file or as its bytes, not as numbers")
            if source is not None:
                return source
        return None

    def _places(self, path: str, folders: Sequence[str]) -> Iterator[Path]:
        """Where a path may lead."""
        yield from (self.folder / folder / path for folder in folders)
        if self.media_root is not None:
            yield from (self.media_root / path.removeprefix(prefix).lstrip("/") for prefix in ("", "/data/"))
