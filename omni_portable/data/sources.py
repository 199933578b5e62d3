"""Where the media of a row are: fields that hold paths, bytes, or parquet structs of both, found without decoding."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from omni_portable.config.paths import user_path
from omni_portable.contracts.errors import DataError
from omni_portable.contracts.media import MediaArtifact, Modality
from omni_portable.data.cells import read_cell
from omni_portable.data.decode import Content, audio_artifact, decode
from omni_portable.data.wanted import AS_IT_IS, Wanted


@dataclass(frozen=True)
class Samples:
    """Sound that is written out as numbers."""

    values: tuple[float, ...] | tuple[tuple[float, ...], ...]
    rate: Any


@dataclass(frozen=True)
class Cell:
    """A value of a parquet column that stays in the file: row counted from 0, and the way from the column to it."""

    file: Path
    column: str
    row: int
    rest: str

    def value(self, where: str) -> Any:
        """What it holds now."""
        return walk(read_cell(self.file, self.column, self.row), self.rest, where)

    def empty(self, where: str) -> bool:
        """Whether it holds no medium; this reads it."""
        return source_of(self.value(where), where, self.file.parent) is None


@dataclass(frozen=True)
class Text:
    """A text, which is its own medium."""

    text: str


Source = Content | Samples | Text


@dataclass(frozen=True)
class MediaRef:
    """One medium of one row.

    Args:
        name / modality: of the artifact.
        where: file, row and field, for messages.
        source: what holds it; a :class:`Cell` is looked up when it is loaded.
        folder: what relative paths are relative to.
        wanted: how much of it, in which size.
    """

    name: str
    modality: Modality
    where: str
    source: Source | Cell
    folder: Path
    wanted: Wanted = AS_IT_IS

    def load(self) -> MediaArtifact:
        """Read and decode it.

        Raises:
            DataError: it is empty, missing, or cannot be decoded; names file, row and field.
        """
        source = self.source
        if isinstance(source, Cell):
            found = source_of(source.value(self.where), self.where, self.folder)
            if found is None:
                raise empty(self.where)
            source = found
        if isinstance(source, Text):
            return MediaArtifact(self.name, "text", source.text, "str")
        if isinstance(source, Samples):
            if self.modality != "audio":
                raise DataError(f"{self.where}: holds sound, not {self.modality}")
            return audio_artifact(np.asarray(source.values), source.rate, self.name, self.where)
        what = f"{self.where} ({source})" if isinstance(source, Path) else self.where
        return decode(source, self.name, self.modality, what, self.wanted)


def empty(where: str) -> DataError:
    return DataError(f"{where}: the medium is missing", remedy="fill it, or remove the row")


def walk(value: Any, path: str, where: str) -> Any:
    """What `path` leads to inside a value ('0' of a list, a key of a mapping); a list of one stands for its element.

    Raises:
        DataError: the path leads nowhere, or a list of several was meant to be one medium.
    """
    for part in path.split(".") if path else ():
        if isinstance(value, list) and part.isdecimal():
            value = value[int(part)] if int(part) < len(value) else None
        elif isinstance(value, Mapping):
            value = value.get(part)
        elif value is not None:
            raise DataError(f"{where}: nothing is called '{part}' inside a {type(value).__name__}")
    if isinstance(value, list) and len(value) > 1 and not isinstance(value[0], int | float):
        raise DataError(
            f"{where}: it holds {len(value)} media where one is wanted", remedy="name one of them, as in images.0"
        )
    return value[0] if isinstance(value, list) and len(value) == 1 else value


def source_of(value: Any, where: str, folder: Path) -> Source | None:
    """What a value says about where its medium is; None where it is empty.

    Understood are a path, bytes, {bytes, path} (bytes win), {image | video | audio: path} and, for sound,
    {array, sampling_rate}.

    Raises:
        DataError: another form, or a file that does not exist.
    """
    if isinstance(value, Mapping):
        if value.get("array") is not None:
            return Samples(_numbers(value["array"], where), value.get("sampling_rate"))
        named = [value[key] for key in ("bytes", "path", "image", "video", "audio") if value.get(key)]
        value = named[0] if named else None
    if value is None or value in ("", b"", []):
        return None
    if isinstance(value, bytes | bytearray):
        return bytes(value)
    if isinstance(value, str):
        path = folder / user_path(value.removeprefix("file://"), where)
        if not path.is_file():
            raise DataError(f"{where}: there is no file {path}", remedy="relative paths begin at the file")
        return path
    raise DataError(
        f"{where}: a {type(value).__name__} is no medium",
        choices=("a path", "bytes", "{bytes, path}", "{array, sampling_rate}"),
    )


def text_of(value: Any, where: str) -> Text | None:
    """A text, or the content of an assistant's message; None where it is empty.

    Raises:
        DataError: another form.
    """
    content = value.get("content") if isinstance(value, Mapping) else value
    if content is None or (isinstance(content, str) and not content.strip()):
        return None
    if not isinstance(content, str):
        raise DataError(f"{where}: a {type(content).__name__} is no text")
    return Text(content)


def _numbers(values: Any, where: str) -> Any:
    """A list of numbers, or of lists of numbers, as nested tuples."""
    try:
        return tuple(tuple(map(float, row)) if isinstance(row, list) else float(row) for row in values)
    except (TypeError, ValueError) as error:
        raise DataError(f"{where}: 'array' holds something other than numbers: {error}") from error
