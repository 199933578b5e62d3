"""What `model.teachers` and `teacher` may be combined with. Torch-free."""

from __future__ import annotations

from typing import Any

from omni_portable.config.convert import Source
from omni_portable.config.plugins import plugin_spec
from omni_portable.config.schema import RunConfig
from omni_portable.contracts.errors import CapabilityError, ConfigError
from omni_portable.contracts.registry import PluginSpec
from omni_portable.contracts.teacher import POOL


def pooled(config: RunConfig) -> bool:
    """Do the run's teachers live outside the train engine?"""
    return config.teacher.placement == "pool"


def check_teachers(config: RunConfig, algorithm: PluginSpec, options: Any, source: Source) -> None:
    """Teachers must be there where the algorithm distils, and only there; a pool of them where it can be used.

    Raises:
        CapabilityError: the algorithm or the train engine cannot do with a pool, or a teacher is missing.
        ConfigError: settings that nothing would read.
    """
    model = config.model
    requires = getattr(options, "requires", None)
    needed = bool(algorithm.capabilities.get("needs_teacher")) or bool(callable(requires) and requires().teacher)
    if needed and not model.teachers:
        raise CapabilityError(
            f"algorithm '{algorithm.name}' distils from a teacher, but model.teachers is empty",
            remedy="add model.teachers.NAME.path=FOLDER, or model.teachers.NAME.lora=FOLDER",
        )
    if model.teachers and not needed:
        raise ConfigError(
            f"model.teachers is set ({', '.join(sorted(model.teachers))}); algorithm '{algorithm.name}' ignores it",
            remedy="remove model.teachers, set algorithm.distill_coef, or use algorithm.name=diffusion_opd",
        )
    if model.teacher_field and not model.teachers:
        raise ConfigError(
            f"model.teacher_field={model.teacher_field} is set, but model.teachers is empty",
            remedy="remove model.teacher_field",
        )
    if len(model.teachers) > 1 and not model.teacher_field:
        raise ConfigError(
            f"model.teachers names {len(model.teachers)} teachers, but model.teacher_field is empty",
            remedy="set model.teacher_field to the prompt field that holds the teacher's name",
        )
    for name, teacher in model.teachers.items():
        if not teacher.path and not teacher.lora:
            raise ConfigError(f"model.teachers.{name} is the student itself", remedy="give it a path, a lora or both")
    if pooled(config):
        _check_pool(config, algorithm, needed, source)


def _check_pool(config: RunConfig, algorithm: PluginSpec, needed: bool, source: Source) -> None:
    placement = source.describe("teacher.placement", config.teacher.placement)
    if not needed:
        raise ConfigError(
            f"{placement}: algorithm '{algorithm.name}' distils from no teacher, so there is nobody to place",
            remedy="set teacher.placement=engine",
        )
    if not algorithm.capabilities.get("needs_log_probs"):
        raise CapabilityError(
            f"{placement}: algorithm '{algorithm.name}' asks its teacher about samples that every update noises anew, "
            "which do not exist before the update; a pool can only answer for what rollout has stored",
            remedy="set teacher.placement=engine",
        )
    engine = plugin_spec("train_engine", config.actor.engine, "actor.engine")
    if not engine.capabilities.get(POOL):
        raise CapabilityError(
            f"{placement}: actor.engine={engine.name} names no teacher that can live outside it",
            remedy="set teacher.placement=engine, or another actor.engine",
        )
