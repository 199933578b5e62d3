"""Frozen teachers for on-policy distillation: each a model folder of the student's family, with or without a LoRA."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import torch

from omni_backends.training.micro import MicroBatch
from omni_portable.config.convert import renaming
from omni_portable.config.paths import user_path
from omni_portable.contracts.errors import CapabilityError
from omni_portable.models.companions import teacher_folder
from omni_portable.models.lora_file import load_saved_lora
from omni_portable.models.setup import EngineSetup, load_adapter
from omni_portable.models.teacher_routing import teacher_of


class Teachers:
    """All teachers of a run, loaded once and never trained.

    Args:
        setup: `config.model.teachers` names them; `config.model.teacher_field` is the prompt field that routes.

    Raises:
        CapabilityError: the algorithm needs a teacher and there is none, or several and no field to tell them apart.
        ModelError: a folder that is missing or of another family.
    """

    def __init__(self, setup: EngineSetup) -> None:
        model = setup.config.model
        if not model.teachers:
            raise CapabilityError(
                "the algorithm distils from a teacher, but model.teachers is empty",
                remedy="add model.teachers: {NAME: {path: FOLDER}}, or LoRA weights as {NAME: {lora: FOLDER}}",
            )
        if len(model.teachers) > 1 and not model.teacher_field:
            raise CapabilityError(
                f"{len(model.teachers)} teachers are named, but no model.teacher_field says which prompt has which",
                remedy="set model.teacher_field to the prompt field that holds the teacher's name",
                choices=sorted(model.teachers),
            )
        self._model = model
        self._adapters = {name: load_teacher(setup, name) for name in model.teachers}

    def forward(self, micro: MicroBatch, step: int) -> Any:
        """Each row under its own teacher, no gradient; every teacher that is needed sees the whole micro-batch.

        Raises:
            DataError: a sample whose prompt names no known teacher.
        """
        rows = zip(micro.common.request_ids, micro.common.metadata, strict=True)
        names = [teacher_of(self._model, f"the prompt of sample '{name}'", metadata) for name, metadata in rows]
        with torch.no_grad():
            scored = {name: micro.forward(self._adapters[name], step) for name in dict.fromkeys(names)}
        if len(scored) == 1:
            return scored[names[0]]
        return _by_row([scored[name] for name in names])

    def modules(self) -> list[torch.nn.Module]:
        """The teachers' transformers, which sleep with the actor's weights."""
        return [adapter.transformer for adapter in self._adapters.values()]


def load_teacher(setup: EngineSetup, name: str) -> Any:
    """The frozen adapter of one teacher, of the kind of model that the run trains.

    Raises:
        ModelError: a folder that is missing or of another family.
    """
    teacher = setup.config.model.teachers[name]
    path = teacher_folder(setup.config, name) or setup.load.path
    with renaming({"model.path": f"model.teachers.{name}.path"}):
        adapter = load_adapter(replace(setup, load=replace(setup.load, path=path)), ("transformer",))
    if teacher.lora:
        load_saved_lora(adapter.transformer, user_path(teacher.lora, f"model.teachers.{name}.lora"))
    adapter.transformer.eval().requires_grad_(False)
    return adapter


def _by_row(scored: list[Any]) -> Any:
    """Row i of the i-th result, field by field; a field that is None stays so."""

    def pick(name: str) -> torch.Tensor | None:
        rows = [getattr(one, name) for one in scored]
        return None if rows[0] is None else torch.stack([values[row] for row, values in enumerate(rows)])

    return type(scored[0])(**{field.name: pick(field.name) for field in fields(scored[0])})
