"""Single values of parquet files, read when they are asked for: columns of media are never in memory as a whole.

What is read at once is :data:`BATCH_ROWS` rows of one column; the newest such batches are kept, up to
:data:`CACHE_BYTES`. Within a row group the batches before the wanted one have to be passed over, so files with small
row groups (what `omni-portable data convert` writes) are read fastest in any order.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections import OrderedDict
from functools import lru_cache
from itertools import accumulate, islice
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet as parquet

from omni_portable.contracts.errors import DataError

BATCH_ROWS = 32
CACHE_BYTES = 64 << 20
OPEN_FILES = 16
_File = tuple[str, int, int]
"""Path, time of the last change and size: a file that is replaced is read again."""
_BatchKey = tuple[_File, str, int, int]


def binary_columns(schema: pyarrow.Schema) -> frozenset[str]:
    """Names of the top-level columns that hold bytes somewhere in their values."""
    return frozenset(field.name for field in schema if _holds_bytes(field.type))


def filled_columns(file: parquet.ParquetFile) -> frozenset[str]:
    """Columns of bytes without a single empty value, as the file's own statistics say; no data are read."""
    metadata = file.metadata
    binary, empty = binary_columns(file.schema_arrow), set()
    for group in range(metadata.num_row_groups):
        for leaf in range(metadata.num_columns):
            chunk = metadata.row_group(group).column(leaf)
            if chunk.physical_type != "BYTE_ARRAY" or chunk.path_in_schema.endswith("path"):
                continue
            if chunk.statistics is None or not chunk.statistics.has_null_count or chunk.statistics.null_count:
                empty.add(chunk.path_in_schema.partition(".")[0])
    return binary - empty


def read_cell(path: Path, column: str, row: int) -> Any:
    """The plain value of a column in a row, counted from 0 over the whole file.

    Raises:
        DataError: the file has gone or is damaged.
    """
    try:
        status = path.stat()
        file = (str(path), status.st_mtime_ns, status.st_size)
        group, offset = _locate(file, row)
        batch, place = divmod(offset, BATCH_ROWS)
        return _batches.get((file, column, group, batch)).column(0)[place].as_py()
    except (pyarrow.ArrowException, OSError, ValueError) as error:
        raise DataError(f"{path} row {row + 1}: column '{column}' cannot be read: {error}") from error


def _holds_bytes(kind: pyarrow.DataType) -> bool:
    types = pyarrow.types
    if types.is_binary(kind) or types.is_large_binary(kind) or types.is_fixed_size_binary(kind):
        return True
    if types.is_dictionary(kind):
        return _holds_bytes(kind.value_type)
    return any(_holds_bytes(kind.field(index).type) for index in range(kind.num_fields))


@lru_cache(maxsize=OPEN_FILES)
def _open(file: _File) -> parquet.ParquetFile:
    return parquet.ParquetFile(file[0], pre_buffer=False, buffer_size=1 << 20)


@lru_cache(maxsize=OPEN_FILES)
def _ends(file: _File) -> tuple[int, ...]:
    """Number of rows up to and with each row group."""
    metadata = _open(file).metadata
    return tuple(accumulate(metadata.row_group(index).num_rows for index in range(metadata.num_row_groups)))


def _locate(file: _File, row: int) -> tuple[int, int]:
    """Row group of a row, and its place there."""
    ends = _ends(file)
    if not ends or not 0 <= row < ends[-1]:
        raise DataError(f"{file[0]} has {ends[-1] if ends else 0} rows, row {row + 1} was asked for")
    group = bisect_right(ends, row)
    return group, row - (ends[group - 1] if group else 0)


class _Batches:
    """The newest batches, at most :data:`CACHE_BYTES` of them (the newest is always kept)."""

    def __init__(self) -> None:
        self._kept: OrderedDict[_BatchKey, pyarrow.RecordBatch] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()

    def get(self, key: _BatchKey) -> pyarrow.RecordBatch:
        with self._lock:
            found = self._kept.get(key)
            if found is None:
                found = self._kept[key] = self._read(key)
                self._bytes += found.nbytes
                while self._bytes > CACHE_BYTES and len(self._kept) > 1:
                    self._bytes -= self._kept.popitem(last=False)[1].nbytes
            else:
                self._kept.move_to_end(key)
            return found

    @staticmethod
    def _read(key: _BatchKey) -> pyarrow.RecordBatch:
        file, column, group, number = key
        batches = _open(file).iter_batches(batch_size=BATCH_ROWS, row_groups=[group], columns=[column])
        return next(islice(batches, number, None))


_batches = _Batches()
