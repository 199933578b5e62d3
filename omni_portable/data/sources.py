"""Where the media of a row are: fields that hold paths, bytes, or parquet structs of both, found without decoding."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from omni_portable.config.paths import user_path
from omni_portable.config.shown import shown
from omni_portable.contracts.errors import ConfigError, DataError
from omni_portable.contracts.media import MediaArtifact, Modality
from omni_portable.data.cells import read_cell
from omni_portable.data.decode import Content, decode
from omni_portable.data.sound import audio_artifact, fitted
from omni_portable.data.wanted import AS_IT_IS, Wanted

LONGEST_NAME = 255
"""Bytes that the name of a file can have."""
CHANNELS_FIRST = "give one list of samples, or one equally long list per channel"
_BASE64 = re.compile(r"[A-Za-z0-9+/_\-\s]+=*\s*")


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
Elsewhere = Callable[[str], Iterable[Path]]


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
            return _given_sound(source, self.name, self.where, self.wanted)
        what = f"{self.where} ({source})" if isinstance(source, Path) else self.where
        return decode(source, self.name, self.modality, what, self.wanted)


def nowhere(path: str) -> Iterable[Path]:
    """No further place."""
    return ()


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


def source_of(value: Any, where: str, folder: Path, elsewhere: Elsewhere = nowhere) -> Source | None:
    """What a value says about where its medium is; None where it is empty.

    Understood are a path, bytes, {bytes, path} (bytes win), {image | video | audio: path} and, for sound,
    {array, sampling_rate}.

    Args:
        folder: where relative paths begin.
        elsewhere: a path as it is written -> further files that it may mean.

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
        return existing_file(value, where, folder, elsewhere)
    raise DataError(
        f"{where}: a {type(value).__name__} is no medium",
        choices=("a path", "bytes", "{bytes, path}", "{array, sampling_rate}"),
    )


def existing_file(text: str, where: str, folder: Path, elsewhere: Elsewhere = nowhere) -> Path:
    """The file that `text` names, below `folder` or `elsewhere`.

    Raises:
        DataError: there is none, or `text` is no path: a URL, base64 text, something that no file can be called.
    """
    name, why = text.removeprefix("file://"), ""
    try:
        places = [folder / user_path(name, where), *elsewhere(name)]
        if found := next((place for place in places if place.is_file()), None):
            return found
        why = f"{where}: there is no file {places[0]}"
    except (ConfigError, OSError) as error:
        why = error.problem if isinstance(error, ConfigError) else f"{where}: {shown(name)}: {error.strerror}"
    raise _no_file(name, where, why)


def _no_file(name: str, where: str, why: str) -> DataError:
    """Why a text leads to no file: it may be something else than a path."""
    if name.startswith("data:") or (len(name) > LONGEST_NAME and _BASE64.fullmatch(name)):
        return DataError(
            f"{where}: {shown(name)} looks like base64, which is not read here",
            remedy="write the bytes into a column of a .parquet file, or write a file and give its path",
        )
    if "://" in name:
        return DataError(f"{where}: {shown(name)} is a URL, and nothing is downloaded", remedy="give a local file")
    return DataError(why, remedy="relative paths begin at the file that holds the row")


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
    """A list of numbers, or of equally long lists of numbers, as nested tuples."""
    if not isinstance(values, list | tuple):
        raise DataError(f"{where}: 'array' holds something other than numbers: {shown(values)}")
    try:
        rows = tuple(tuple(map(float, row)) if isinstance(row, list) else float(row) for row in values)
    except (TypeError, ValueError, OverflowError) as error:
        raise DataError(f"{where}: 'array' holds something other than numbers: {shown(values)}") from error
    if len({len(row) if isinstance(row, tuple) else -1 for row in rows}) > 1:
        raise DataError(f"{where}: 'array' holds channels of different lengths", remedy=CHANNELS_FIRST)
    return rows


def _given_sound(source: Samples, name: str, where: str, wanted: Wanted) -> MediaArtifact:
    """Sound in numbers, brought to the rate and the length that are wanted."""
    try:
        data = np.asarray(source.values, np.float64)
    except ValueError as error:
        raise DataError(f"{where}: 'array' holds channels of different lengths", remedy=CHANNELS_FIRST) from error
    if data.ndim == 2 and 0 < data.shape[1] < data.shape[0]:
        raise DataError(
            f"{where}: 'array' has {data.shape[0]} channels of {data.shape[1]} samples each", remedy=CHANNELS_FIRST
        )
    artifact = audio_artifact(data, source.rate, name, where)
    if not wanted.sample_rate and not wanted.max_seconds:
        return artifact
    return audio_artifact(*fitted(np.atleast_2d(data), source.rate, wanted, where), name, where)
