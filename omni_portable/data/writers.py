"""Converted rows to files: .parquet with media inside (small row groups), or .jsonl with paths. Whole or not at all."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

from omni_portable.contracts.errors import DataError
from omni_portable.data.cells import BATCH_ROWS
from omni_portable.data.decode import Content
from omni_portable.data.kinds.base import MEDIA, Column, Values

SUFFIXES = (".jsonl", ".parquet")


def write_rows(path: Path, rows: Iterable[Values], columns: Sequence[Column], keep_paths: bool = False) -> None:
    """Write the columns of all rows.

    Args:
        path: .parquet: media become {bytes, path}; .jsonl: media become paths, relative where they lie below it.
        keep_paths: leave the bytes of media out of a .parquet file too.

    Raises:
        DataError: another ending, or a row whose medium is bytes where only paths can be written.
    """
    if path.suffix not in SUFFIXES:
        raise DataError(f"{path} ends neither in .jsonl nor in .parquet", choices=SUFFIXES)
    with _replacing(path) as temporary:
        if path.suffix == ".jsonl":
            _write_jsonl(temporary, rows, columns, path.resolve().parent)
        else:
            _write_parquet(temporary, rows, columns, keep_paths)


@contextmanager
def _replacing(path: Path) -> Iterator[Path]:
    """A file beside `path` that takes its place at the end; nothing is left behind on an error."""
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield temporary
        os.replace(temporary, path)
    except OSError as error:
        raise DataError(f"cannot write {path}: {error.strerror or error}") from error
    finally:
        temporary.unlink(missing_ok=True)


def _write_jsonl(path: Path, rows: Iterable[Values], columns: Sequence[Column], folder: Path) -> None:
    with open(path, "w", encoding="utf-8") as file:
        for values in rows:
            row = {c.name: _as_text(c, values[c.name], folder) for c in columns if values.get(c.name) is not None}
            file.write(json.dumps(row, ensure_ascii=False) + "\n")


def _as_text(column: Column, value: Any, folder: Path) -> Any:
    if column.kind not in MEDIA:
        return value
    if not isinstance(value, Path):
        raise DataError(
            f"column '{column.name}' holds bytes, which a .jsonl file cannot", remedy="write a .parquet file"
        )
    place = value.resolve()
    return str(place.relative_to(folder)) if place.is_relative_to(folder) else str(place)


def _write_parquet(path: Path, rows: Iterable[Values], columns: Sequence[Column], keep_paths: bool) -> None:
    import pyarrow
    import pyarrow.parquet as parquet

    medium = pyarrow.struct([("bytes", pyarrow.binary()), ("path", pyarrow.string())])
    kinds = {"text": pyarrow.string(), "texts": pyarrow.list_(pyarrow.string()), "number": pyarrow.float64()}
    schema = pyarrow.schema([(c.name, kinds.get(c.kind, medium)) for c in columns])
    remaining = iter(rows)
    with parquet.ParquetWriter(path, schema, compression="zstd") as writer:
        while group := list(islice(remaining, BATCH_ROWS)):
            plain = [{c.name: _as_cell(c, values.get(c.name), keep_paths) for c in columns} for values in group]
            writer.write_table(pyarrow.Table.from_pylist(plain, schema), row_group_size=BATCH_ROWS)


def _as_cell(column: Column, value: Any, keep_paths: bool) -> Any:
    if column.kind not in MEDIA or value is None:
        return value
    content: Content = value
    if isinstance(content, bytes):
        return {"bytes": content, "path": None}
    if keep_paths:
        return {"bytes": None, "path": str(content.resolve())}
    return {"bytes": content.read_bytes(), "path": content.name}
