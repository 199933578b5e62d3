"""Converted rows to files: .parquet with media inside (small row groups), or .jsonl with paths. Whole or not at all."""

from __future__ import annotations

import errno
import json
import os
import secrets
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
_NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)
"""What file systems without hard links answer."""


def check_out(path: Path, sources: Sequence[Path], overwrite: bool) -> None:
    """Whether a converted file may be written to `path`: seen before any row is read.

    Args:
        sources: files that rows come from; none of them may be replaced, whatever it is called and linked to.
        overwrite: replace a file that is there.

    Raises:
        DataError: another ending, a folder, a source, a file that is there, or a place where nothing can be written.
    """
    try:
        _check_out(path, sources, overwrite)
    except OSError as error:
        raise DataError(f"OUT is {path}, which cannot be looked at: {error.strerror or error}") from error


def _check_out(path: Path, sources: Sequence[Path], overwrite: bool) -> None:
    if path.suffix not in SUFFIXES:
        raise DataError(f"OUT is {path}, which ends neither in .jsonl nor in .parquet", choices=SUFFIXES)
    if any(_same_file(path, source) for source in sources):
        raise DataError(f"OUT is {path}, which is also a source of rows", remedy="name another file last, for OUT")
    if path.exists() and not path.is_file():
        raise DataError(f"OUT is {path}, which is {'a folder' if path.is_dir() else 'no plain file'}")
    if os.path.lexists(path) and not overwrite:
        raise _occupied(path)
    folder = path.resolve().parent
    while not folder.exists():
        folder = folder.parent
    if not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
        raise DataError(f"cannot write {path}: nothing can be written in {folder}", remedy="name another place for OUT")


def write_rows(
    path: Path,
    rows: Iterable[Values],
    columns: Sequence[Column],
    keep_paths: bool = False,
    overwrite: bool = False,
) -> None:
    """Write the columns of all rows, into a file that :func:`check_out` found fit.

    Args:
        path: .parquet: media become {bytes, path}; .jsonl: media become paths, relative where they lie below it.
        keep_paths: leave the bytes of media out of a .parquet file too.
        overwrite: replace a file that is there; otherwise one that another process has put there meanwhile stays.

    Raises:
        DataError: nothing can be written, a file is there, or a row whose medium is bytes where only paths can be
            written.
    """
    with _replacing(path.resolve(), overwrite) as temporary:
        if path.suffix == ".jsonl":
            _write_jsonl(temporary, rows, columns, path.resolve().parent)
        else:
            _write_parquet(temporary, rows, columns, keep_paths)


def _same_file(path: Path, other: Path) -> bool:
    if path.exists() and other.exists():
        return path.samefile(other)
    return path.resolve() == other.resolve()


def _occupied(path: Path) -> DataError:
    return DataError(
        f"OUT is {path}, which exists already", remedy="name another file last, or replace it with --overwrite"
    )


@contextmanager
def _replacing(path: Path, overwrite: bool) -> Iterator[Path]:
    """A new file beside `path`, this process' own, that takes its place at the end; an error leaves nothing behind."""
    temporary = path.with_name(f".{path.name[:40]}.{os.getpid()}-{secrets.token_hex(4)}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.open("xb").close()
        try:
            yield temporary
            _flush(temporary)
            _put(temporary, path, overwrite)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else str(error)
        raise DataError(f"cannot write {path}: {reason}", remedy="make room, or name another place for OUT") from error


def _flush(path: Path) -> None:
    """The content is on the disk before the name is, so that a power cut leaves no half of a file under it."""
    with path.open("rb") as file:
        os.fsync(file.fileno())


def _put(temporary: Path, path: Path, overwrite: bool) -> None:
    """Give the file its name; unless `overwrite`, only where nothing has that name."""
    if overwrite:
        os.replace(temporary, path)
        return
    try:
        os.link(temporary, path)  # of two that come at once only one gets the name
    except FileExistsError as error:
        raise _occupied(path) from error
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        if os.path.lexists(path):
            raise _occupied(path) from error
        os.replace(temporary, path)


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
    try:
        return {"bytes": content.read_bytes(), "path": content.name}
    except OSError as error:
        raise DataError(f"column '{column.name}': {content} cannot be read: {error.strerror or error}") from error
