"""Which teacher a prompt has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from omni_portable.config.schema import ModelConfig
from omni_portable.contracts.errors import DataError


class HasFields(Protocol):
    """A row of a dataset."""

    @property
    def prompt(self) -> str: ...

    @property
    def metadata(self) -> Mapping[str, object]: ...


def teacher_of(model: ModelConfig, what: str, metadata: Mapping[str, object]) -> str:
    """Name of the teacher that the fields of a prompt ask for.

    Args:
        what: the sample or prompt, for the message.

    Raises:
        DataError: they name no teacher of `model.teachers`.
    """
    if not model.teacher_field:
        return next(iter(model.teachers))
    name = str(metadata.get(model.teacher_field, ""))
    if name not in model.teachers:
        raise DataError(
            f"{what} names the teacher '{name}' in its field '{model.teacher_field}'",
            remedy="name a teacher of model.teachers in every row",
            choices=sorted(model.teachers),
        )
    return name


def check_routes(model: ModelConfig, rows: Sequence[HasFields]) -> None:
    """Every training prompt must have a teacher, where there are any (`DataError`); found before weights load."""
    if model.teachers and model.teacher_field:
        for row in rows:
            teacher_of(model, f"the prompt {row.prompt!r}", row.metadata)
