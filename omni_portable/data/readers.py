"""Rows of prompt files: .txt (a prompt per line), .jsonl and .parquet. No row is checked here beyond its syntax.

Columns of a parquet file that hold bytes (media, latents) are not part of its rows: see `cells`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from omni_portable.contracts.errors import DataError
from omni_portable.data.cells import binary_columns

SUFFIXES = (".txt", ".jsonl", ".parquet")
PARQUET_BATCH = 1024
"""Rows of a parquet file that are in memory at once."""


def read_rows(path: Path, prompt_key: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """(row number from 1, row) for every row; in a .txt file each line is the `prompt_key` of its row.

    Raises:
        DataError: the file is missing, unreadable, of another kind, or a line is no JSON object; names the row.
    """
    if not path.is_file():
        raise DataError(f"the prompt file {path} does not exist", remedy="check data.train and data.validation")
    if path.suffix == ".parquet":
        return _read_parquet(path)
    if path.suffix == ".jsonl":
        return _read_jsonl(path)
    if path.suffix == ".txt":
        return ((number, {prompt_key: line}) for number, line in _lines(path))
    raise DataError(f"the prompt file {path} has the unknown ending '{path.suffix}'", choices=SUFFIXES)


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """Lines without their ends; blank ones after the last text line are no rows."""
    try:
        lines = path.read_text(encoding="utf-8-sig").rstrip().split("\n")
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not UTF-8 text: {error}", remedy="convert it to UTF-8") from error
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from error
    if lines == [""]:
        return iter(())
    return enumerate((line.rstrip("\r") for line in lines), 1)


def _read_jsonl(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    for number, line in _lines(path):
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:  # beside syntax: numbers and nesting beyond what Python reads
            raise DataError(f"{path} row {number} is no JSON: {error}", remedy="write one object per line") from error
        if not isinstance(row, dict):
            raise DataError(f"{path} row {number} is a JSON {type(row).__name__}, not an object")
        yield number, row


def _read_parquet(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    import pyarrow
    import pyarrow.parquet as parquet

    try:
        with parquet.ParquetFile(path, pre_buffer=False) as file:
            number, schema = 0, file.schema_arrow
            columns = [name for name in schema.names if name not in binary_columns(schema)]
            for batch in file.iter_batches(batch_size=PARQUET_BATCH, columns=columns):
                for row in batch.to_pylist():
                    number += 1
                    yield number, row
    except (pyarrow.ArrowException, OSError, ValueError, OverflowError) as error:
        # Beside its own errors pyarrow raises OSError for damaged pages, ValueError for dates Python cannot hold.
        raise DataError(f"{path} cannot be read as parquet: {error}", remedy="write the file again") from error
