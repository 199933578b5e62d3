"""Prompts with checked rows and stable ids. A row that breaks the schema is an error that names file, row and field."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from omni_portable.config.assets import BUILTIN, packaged
from omni_portable.config.convert import suggest
from omni_portable.config.paths import user_path
from omni_portable.config.shown import shown
from omni_portable.contracts.errors import DataError
from omni_portable.contracts.media import MediaArtifact
from omni_portable.data.fields import NO_MEDIA, RowMedia
from omni_portable.data.lazy import LazyMedia
from omni_portable.data.readers import read_rows
from omni_portable.data.sampler import PromptSampler
from omni_portable.data.text import QUOTED
from omni_portable.data.verl import MEDIA_COLUMNS, from_verl, is_chat

__all__ = ["PromptRow", "PromptSampler", "load_prompts", "prompt_file", "refuse_overlap"]

Split = Literal["train", "validation"]
ID_KEY = "id"
NOBODY: Mapping[str, str] = {}
TEXT_FIELD = "ground_truth"
"""The wanted text of a text-rendering prompt; always a string."""
NO_NAMES: Mapping[str, tuple[str, Sequence[str]]] = MappingProxyType({})


@dataclass(frozen=True)
class PromptRow:
    """One prompt.

    Args:
        prompt_id: the row's `id` where it has one, else a hash of the prompt (with a count where it occurs again).
        prompt: text without surrounding white space.
        metadata: the row's other fields.
        media: name -> input media, decoded when they are looked at.
        targets: per sample of the prompt, the media that the dataset gives in its place; none where samples are drawn.
    """

    prompt_id: str
    prompt: str
    metadata: Mapping[str, Any] = field(default_factory=dict)
    media: Mapping[str, MediaArtifact] = field(default_factory=dict)
    targets: Sequence[Mapping[str, MediaArtifact]] = ()


def load_prompts(
    source: str,
    *,
    split: Split,
    prompt_key: str = "prompt",
    required_fields: Sequence[str] = (),
    needed_by: Mapping[str, str] = NOBODY,
    names: Mapping[str, tuple[str, Sequence[str]]] = NO_NAMES,
    media: RowMedia = NO_MEDIA,
) -> list[PromptRow]:
    """All rows of a prompt source, in the order of the file.

    Rows in verl's form (the prompt is a list of chat messages) go through :func:`omni_portable.data.verl.from_verl`.
    In a .txt file the field 'ground_truth', where it is required, is what stands between double quotes in the prompt.
    Files that media fields name must exist; columns of bytes stay in the file until a medium is looked at.

    Args:
        source: a .txt, .jsonl or .parquet file, or 'builtin:NAME'.
        split: which file of a packaged set; a path is taken as it is.
        prompt_key: field that holds the prompt.
        required_fields: fields every row must have and fill.
        needed_by: required field -> who needs it and what else may be done, for the error where it is missing.
        names: required field -> (key of the configuration, what it lists): the field must hold one of them.
        media: which fields hold input media and targets.

    Raises:
        DataError: no such file, no rows, or a row that breaks the schema; names file, row number and field.
        ConfigError: an unknown packaged set.
    """
    path = prompt_file(source, split)
    rows: list[PromptRow] = []
    seen: dict[str, int] = {}
    finder = media.finder(path)
    for number, row in read_rows(path, prompt_key):
        where = f"{path} row {number}"
        if is_chat(row.get(prompt_key)):
            finder.refuse_unnamed(row, MEDIA_COLUMNS, number)
            row = from_verl(row, prompt_key, where)
        if path.suffix == ".txt" and TEXT_FIELD in required_fields:
            row[TEXT_FIELD] = _quoted_text(row[prompt_key], where, needed_by.get(TEXT_FIELD, ""))
        if prompt_key not in row:
            raise _missing(row, prompt_key, where, remedy="data.prompt_key names the field that holds the prompt")
        prompt = _check(row, prompt_key, where, str).strip()
        _check_text(row, where)
        for name in required_fields:
            value = _check(row, name, where, str if name == TEXT_FIELD else None, needed_by.get(name, ""))
            if name in names:
                _check_name(value, name, where, *names[name])
        metadata = {key: value for key, value in row.items() if key not in (prompt_key, ID_KEY, *finder.columns)}
        prompt_id = _prompt_id(row.get(ID_KEY), prompt, seen, where)
        rows.append(PromptRow(prompt_id, prompt, metadata, finder.inputs(row, number), finder.targets(row, number)))
    if not rows:
        raise DataError(f"the prompt file {path} holds no rows", remedy="add prompts, one per line or row")
    return rows


def refuse_overlap(train: Sequence[PromptRow], validation: Sequence[PromptRow]) -> None:
    """Held-out prompts must not be trained on; white space and case make no difference. The same question about
    another medium is another prompt.

    Raises:
        DataError: names up to three prompts that are in both.
    """
    trained = {_asked(row) for row in train}
    both = [row.prompt for row in validation if _asked(row) in trained]
    if both:
        raise DataError(
            f"{len(both)} validation prompts are also training prompts, for example {', '.join(map(shown, both[:3]))}",
            remedy="remove them from one of data.train and data.validation",
        )


def prompt_file(source: str, split: Split) -> Path:
    """The file that a source names.

    Raises:
        DataError: a packaged folder that is no prompt set.
        ConfigError: nothing of that name is packaged.
    """
    if not source.startswith(BUILTIN):
        return user_path(source, f"data.{split}")
    folder = packaged(source.removeprefix(BUILTIN))
    for suffix in (".jsonl", ".parquet"):
        if (folder / f"{split}{suffix}").is_file():
            return folder / f"{split}{suffix}"
    raise DataError(f"'{source}' is packaged with omni-portable, but it is no prompt set with a {split} split")


def _missing(row: Mapping[str, Any], name: str, where: str, remedy: str = "") -> DataError:
    choices = sorted(str(key) for key in row)
    return DataError(f"{where}: field '{name}' is missing", remedy=remedy, choices=choices)


def _check(row: Mapping[str, Any], name: str, where: str, expected: type | None, needed: str = "") -> Any:
    if name not in row:
        raise _missing(row, name, where, needed)
    value = row[name]
    if value is None or value in ("", [], {}) or (isinstance(value, str) and not value.strip()):
        remedy = f"fill it, or remove the row{f'; {needed}' if needed else ''}"
        raise DataError(f"{where}: field '{name}' is empty", remedy=remedy)
    if expected is not None and not isinstance(value, expected):
        raise DataError(
            f"{where}: field '{name}' holds {shown(value)}, which is {type(value).__name__}, not {expected.__name__}",
            remedy="write it as a string" if expected is str else "",
        )
    return value


def _check_name(value: Any, field: str, where: str, key: str, known: Sequence[str]) -> None:
    if str(value) not in known:
        raise DataError(
            f"{where}: field '{field}' is {value!r}, which is none of {key}",
            remedy=suggest(str(value), known) or f"name one of {key} in every row",
            choices=sorted(known),
        )


def _check_text(value: Any, where: str, field: str = "") -> None:
    """Every text must be text that can be written down: JSON can spell half of a character ("\\ud83d")."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            _check_text(key, where, field)
            _check_text(inner, where, field or str(key))
    elif isinstance(value, list):
        for inner in value:
            _check_text(inner, where, field)
    elif isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise DataError(
                f"{where}: field {shown(field)} holds half of a character ({value[error.start : error.end]!a})",
                remedy="write the file again as UTF-8",
            ) from error


def _quoted_text(prompt: str, where: str, needed: str) -> str:
    found = QUOTED.findall(prompt)
    if prompt.strip() and not found:
        raise DataError(
            f"{where}: field '{TEXT_FIELD}' is missing: the prompt {shown(prompt)} has no text between double quotes",
            remedy=f'quote the text to be shown, as in: a sign "OPEN"{f"; {needed}" if needed else ""}',
        )
    return " ".join(found)


def _prompt_id(given: object, prompt: str, seen: dict[str, int], where: str) -> str:
    if given is None:
        name = hashlib.blake2b(prompt.encode(), digest_size=8).hexdigest()
        count = seen.get(name, 0) + 1
        while (unique := name if count == 1 else f"{name}-{count}") in seen:  # a row may have given itself that id
            count += 1
        seen[unique] = 1
        seen[name] = count
        return unique
    if isinstance(given, bool) or not isinstance(given, str | int) or given == "":
        raise DataError(f"{where}: field '{ID_KEY}' holds {shown(given)}, which is no string or whole number")
    if str(given) in seen:
        raise DataError(f"{where}: field '{ID_KEY}' is {shown(given)}, as in an earlier row", remedy="make ids unique")
    seen[str(given)] = 1
    return str(given)


def _asked(row: PromptRow) -> tuple[str, object]:
    return _folded(row.prompt), row.media.sources if isinstance(row.media, LazyMedia) else ()


def _folded(prompt: str) -> str:
    return " ".join(prompt.split()).casefold()
