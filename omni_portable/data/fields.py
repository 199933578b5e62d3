"""Which fields of a row hold media, as `data.media` and `data.targets` say, and what is found there in each row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from omni_portable.config.schema import DataConfig
from omni_portable.contracts.errors import DataError
from omni_portable.contracts.media import MediaArtifact, Modality
from omni_portable.contracts.rollout import Extent
from omni_portable.data.cells import binary_columns, filled_columns
from omni_portable.data.lazy import LazyMedia
from omni_portable.data.sources import Cell, MediaRef, empty, source_of, text_of, walk
from omni_portable.data.wanted import Wanted, wanted_input, wanted_target


@dataclass(frozen=True)
class MediaField:
    """One medium per row.

    Args:
        name / modality: of the artifact it becomes.
        path: field, or the way into it ('images.0').
        wanted: how much of it, in which size.
        optional: rows may lack it.
    """

    name: str
    modality: Modality
    path: str
    wanted: Wanted = field(default_factory=Wanted)
    optional: bool = False

    @property
    def column(self) -> str:
        """The field that the path begins with."""
        return self.path.partition(".")[0]


@dataclass(frozen=True)
class RowMedia:
    """Fields of input media, and per sample of a prompt the fields of what is given in its place."""

    inputs: Sequence[MediaField] = ()
    targets: Sequence[Sequence[MediaField]] = ()

    def finder(self, path: Path) -> MediaFinder:
        """For the rows of one file."""
        return MediaFinder(self, path)


NO_MEDIA = RowMedia()


def input_media(data: DataConfig) -> RowMedia:
    """As `data.media` says."""
    return RowMedia(
        [
            MediaField(name, cast(Modality, media.modality), media.field or name, wanted_input(media), media.optional)
            for name, media in data.media.items()
        ]
    )


def training_media(data: DataConfig, artifacts: Mapping[str, str], extent: Extent) -> RowMedia:
    """Input media and targets.

    Args:
        artifacts: name -> modality of what the model makes.
        extent: size of a sample.
    """
    samples = max((len(target.fields) for target in data.targets.values()), default=0)
    targets = [
        [
            MediaField(
                name,
                cast(Modality, artifacts[name]),
                target.fields[sample],
                wanted_target(artifacts[name], extent, target.resize),
            )
            for name, target in data.targets.items()
        ]
        for sample in range(samples)
    ]
    return RowMedia(input_media(data).inputs, targets)


class MediaFinder:
    """Finds the media of a file's rows; nothing is decoded.

    Raises:
        DataError: from its methods: a medium that is missing or has an unknown form; names file, row and field.
    """

    def __init__(self, media: RowMedia, path: Path) -> None:
        self._media, self._path = media, path
        self._fields = [*media.inputs, *(one for sample in media.targets for one in sample)]
        self._binary, self._filled = _columns_of_bytes(path)

    @property
    def columns(self) -> frozenset[str]:
        """Fields that hold media, and so are no metadata; texts stay readable for rewards."""
        return frozenset(one.column for one in self._fields if one.modality != "text")

    def refuse_unnamed(self, row: Mapping[str, Any], names: Sequence[str], number: int) -> None:
        """`DataError` where one of the named columns holds media that no setting mentions."""
        for name in names:
            if name not in self.columns and (row.get(name) or name in self._binary):
                raise DataError(
                    f"{self._path} row {number}: the column '{name}' holds input media, which data.media does not name",
                    remedy=f"name them, e.g. data.media.image={{field: {name}, modality: image}}, or remove the column",
                )

    def inputs(self, row: Mapping[str, Any], number: int) -> Mapping[str, MediaArtifact]:
        """Name -> input media of row `number` (from 1)."""
        return self._find(self._media.inputs, row, number)

    def targets(self, row: Mapping[str, Any], number: int) -> tuple[Mapping[str, MediaArtifact], ...]:
        """One mapping per sample."""
        return tuple(self._find(sample, row, number) for sample in self._media.targets)

    def _find(self, fields: Sequence[MediaField], row: Mapping[str, Any], number: int) -> Mapping[str, MediaArtifact]:
        refs = [ref for one in fields if (ref := self._ref(one, row, number)) is not None]
        return LazyMedia(refs) if refs else {}

    def _ref(self, one: MediaField, row: Mapping[str, Any], number: int) -> MediaRef | None:
        where = f"{self._path} row {number}: field '{one.path}'"
        rest = one.path.partition(".")[2]
        folder = self._path.parent
        if one.column in self._binary:
            cell = Cell(self._path, one.column, number - 1, rest)
            if one.column not in self._filled and cell.empty(where):
                if one.optional:
                    return None
                raise empty(where)
            return MediaRef(one.name, one.modality, where, cell, folder, one.wanted)
        if one.column not in row and not one.optional:
            known = sorted({*map(str, row), *self._binary})
            key = f"data.media.{one.name}.field" if one in self._media.inputs else f"data.targets.{one.name}.fields"
            raise DataError(
                f"{self._path} row {number}: field '{one.column}' is missing",
                remedy=f"{key} says which fields hold '{one.name}': name another one there",
                choices=known,
            )
        value = walk(row.get(one.column), rest, where)
        source = text_of(value, where) if one.modality == "text" else source_of(value, where, folder)
        if source is None:
            if one.optional:
                return None
            raise empty(where)
        return MediaRef(one.name, one.modality, where, source, folder, one.wanted)


def _columns_of_bytes(path: Path) -> tuple[frozenset[str], frozenset[str]]:
    """Columns of bytes, and those of them that are known to be filled; a file that cannot be opened is for its reader
    to complain about."""
    import pyarrow
    import pyarrow.parquet as parquet

    if path.suffix != ".parquet" or not path.is_file():
        return frozenset(), frozenset()
    try:
        with parquet.ParquetFile(path, pre_buffer=False) as file:
            return binary_columns(file.schema_arrow), filled_columns(file)
    except (pyarrow.ArrowException, OSError):
        return frozenset(), frozenset()
