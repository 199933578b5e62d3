"""Which teacher a prompt has."""

from __future__ import annotations

from collections.abc import Mapping

from omni_portable.config.schema import ModelConfig
from omni_portable.contracts.errors import DataError


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
