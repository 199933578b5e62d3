"""Published datasets to files that recipes read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

from omni_portable.contracts.errors import DataError
from omni_portable.data.checking import check_values
from omni_portable.data.kinds.base import Kind, LeftOut, SourceRow, Values
from omni_portable.data.raw import read_raw
from omni_portable.data.writers import check_out, write_rows


@dataclass
class Conversion:
    """What became of the rows.

    Args:
        written: how many.
        left_out: reason -> how many.
        first_problem: of the rows that broke the schema, the first one's error in full.
        filled: column -> in how many of the written rows it is filled.
    """

    written: int = 0
    left_out: Counter[str] = field(default_factory=Counter)
    first_problem: str = ""
    filled: Counter[str] = field(default_factory=Counter)


def convert_files(
    kind: Kind,
    sources: Sequence[Path],
    out: Path,
    *,
    skip_bad: bool = False,
    keep_paths: bool = False,
    media_root: Path | None = None,
    overwrite: bool = False,
) -> Conversion:
    """Convert the rows of all sources, in order, into one file; every row is checked and its media are decoded.

    Args:
        skip_bad: leave rows that break the schema out and count them, instead of stopping at the first.
        keep_paths: write paths of media instead of their bytes.
        media_root: a further folder where paths of media may begin.
        overwrite: replace `out` where it exists. A source is never replaced.

    Raises:
        DataError: `out` cannot or may not be written (nothing has been read then), a row that breaks the schema (file,
            row and field are named), or no row is left.
    """
    check_out(out, sources, overwrite)
    result = Conversion()
    rows = _rows(kind, sources, media_root, skip_bad, result)
    first = next(rows, None)
    if first is None:
        raise DataError(
            f"none of the rows of {', '.join(map(str, sources))} can be used as '{kind.name}'",
            remedy=result.first_problem or f"this kind takes {kind.takes}",
        )
    write_rows(out, _counted(first, rows, result), kind.columns, keep_paths, overwrite)
    return result


def _counted(first: Values, rows: Iterator[Values], result: Conversion) -> Iterator[Values]:
    for values in chain((first,), rows):
        yield values
        result.written += 1
        result.filled.update(name for name, value in values.items() if value is not None)


def _rows(
    kind: Kind, sources: Sequence[Path], media_root: Path | None, skip_bad: bool, result: Conversion
) -> Iterator[Values]:
    seen: set[object] = set()
    for path in sources:
        for number, row in read_raw(path):
            source = SourceRow(row, f"{path} row {number}", path.parent, media_root)
            try:
                values = kind.convert(source)
                if not isinstance(values, LeftOut):
                    check_values(kind, values, source.where)
            except DataError as error:
                if not skip_bad:
                    raise
                values = LeftOut("broken")
                result.first_problem = result.first_problem or str(error)
            if not isinstance(values, LeftOut) and kind.once and values[kind.once] in seen:
                values = LeftOut("duplicate")
            if isinstance(values, LeftOut):
                result.left_out[values.reason] += 1
                continue
            if kind.once:
                seen.add(values[kind.once])
            yield values
