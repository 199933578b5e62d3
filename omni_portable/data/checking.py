"""Does a row have what its kind of dataset asks for? The same checks for fresh conversions and for finished files."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from omni_portable.config.shown import shown
from omni_portable.contracts.errors import DataError
from omni_portable.contracts.media import MediaArtifact
from omni_portable.data.decode import Content, decode
from omni_portable.data.kinds.base import MEDIA, Column, Kind, Values
from omni_portable.data.raw import read_raw
from omni_portable.data.sources import source_of, walk


def check_file(path: Path, kind: Kind) -> int:
    """Check every row of a converted file, media decoded; the number of rows.

    Raises:
        DataError: the first problem, with file, row and field; or a file without rows.
    """
    count = 0
    for count, row in read_raw(path):
        where = f"{path} row {count}"
        check_values(kind, row_values(kind, row, where, path.parent), where)
    if not count:
        raise DataError(f"{path} holds no rows")
    return count


def row_values(kind: Kind, row: Mapping[str, Any], where: str, folder: Path) -> dict[str, Any]:
    """The kind's columns of a row as it was read, media as paths or bytes; columns that are absent or empty are left
    out."""
    values: dict[str, Any] = {}
    for column in kind.columns:
        value = row.get(column.name)
        if column.kind in MEDIA:
            named = f"{where}: field '{column.name}'"
            value = source_of(walk(value, "", named), named, folder)
        if value not in (None, "", []):
            values[column.name] = value
    return values


def check_values(kind: Kind, values: Values, where: str) -> None:
    """
    Raises:
        DataError: a column that is missing or of another type, a medium that cannot be decoded, or whatever else the
            kind rules out.
    """
    artifacts: dict[str, MediaArtifact] = {}
    for column in kind.columns:
        value = values.get(column.name)
        named = f"{where}: field '{column.name}'"
        if value is None or (isinstance(value, str) and not value.strip()):
            if column.required:
                raise DataError(f"{named} is missing or empty", remedy=f"kind '{kind.name}' needs it in every row")
        elif column.kind in MEDIA:
            artifacts[column.name] = _decoded(column, value, named)
        else:
            _check_plain(column, value, named)
    kind.check(values, artifacts, where)


def _decoded(column: Column, value: Content, named: str) -> MediaArtifact:
    what = f"{named} ({value})" if isinstance(value, Path) else named
    return decode(value, column.name, MEDIA[column.kind], what)


def _check_plain(column: Column, value: Any, named: str) -> None:
    fits = {
        "text": _is_text(value),
        "texts": isinstance(value, list) and all(map(_is_text, value)),
        "number": isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value),
    }
    if not fits[column.kind]:
        raise DataError(f"{named} holds {shown(value)}, which is no {column.kind.replace('texts', 'list of texts')}")


def _is_text(value: object) -> bool:
    """A text that can be written down: JSON can spell half of a character."""
    return isinstance(value, str) and value.encode(errors="replace").decode() == value
