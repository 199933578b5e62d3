"""Rows of source files as they are, bytes included, for conversion and checks; a few rows are in memory at once."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from omni_portable.contracts.errors import DataError
from omni_portable.data.cells import BATCH_ROWS
from omni_portable.data.readers import read_rows

SUFFIXES = (".txt", ".jsonl", ".json", ".parquet")


def read_raw(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """(row number from 1, row); a line of a .txt file is the 'prompt' of its row, a .json file holds a list.

    Raises:
        DataError: the file is missing, unreadable or of another kind, or a row is no object.
    """
    if not path.is_file():
        raise DataError(f"the file {path} does not exist")
    if path.suffix == ".parquet":
        return _parquet(path)
    if path.suffix == ".json":
        return _json(path)
    if path.suffix not in SUFFIXES:
        raise DataError(f"the file {path} has the unknown ending '{path.suffix}'", choices=SUFFIXES)
    return read_rows(path, "prompt")


def _parquet(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    import pyarrow
    import pyarrow.parquet as parquet

    number = 0
    try:
        with parquet.ParquetFile(path, pre_buffer=False) as file:
            for batch in file.iter_batches(batch_size=BATCH_ROWS):
                for row in batch.to_pylist():
                    number += 1
                    yield number, row
    except (pyarrow.ArrowException, OSError, ValueError, OverflowError) as error:
        raise DataError(f"{path} cannot be read as parquet after row {number}: {error}") from error


def _json(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    try:
        rows = json.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path} is no JSON: {error}") from error
    if not isinstance(rows, list):
        raise DataError(f"{path} holds a JSON {type(rows).__name__}, not a list of rows")
    for number, row in enumerate(rows, 1):
        if not isinstance(row, dict):
            raise DataError(f"{path} row {number} is a JSON {type(row).__name__}, not an object")
        yield number, row
