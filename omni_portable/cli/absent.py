"""What a run would stop at on this machine although its configuration is sound: packages and files that are not here,
and a run directory that is taken."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from omni_portable.config.schema import RunConfig


def absent_text(config: RunConfig) -> str:
    """A line for each thing, or one that says that there is none."""
    found = list(_absent(config))
    if not found:
        return "packages, model folder, prompt files and run directory: as a run needs them"
    return "\n".join(["a run would stop on this machine:", *(f"  {line}" for line in found)])


def _absent(config: RunConfig) -> Iterator[str]:
    from omni_portable.contracts.errors import RunDirectoryError
    from omni_portable.trainer.rundir import refuse_second_run, run_directory

    models = {"model.path": config.model.path}
    models |= {f"model.teachers.{name}.path": teacher.path for name, teacher in config.model.teachers.items()}
    folders = {"model.lora.path": config.model.lora.path}
    folders |= {f"model.teachers.{name}.lora": teacher.lora for name, teacher in config.model.teachers.items()}
    files = {"data.train": config.data.train, "data.validation": config.data.validation}
    yield from _absent_packages("launcher", config.launcher.name, "launcher.name")
    yield from _absent_packages("data_plane", config.dataplane.name, "dataplane.name")
    yield from (line for key, path in models.items() if path and (line := _absent_model(key, path)))
    yield from (line for key, path in folders.items() if path and (line := _absent_path(key, path, "folder")))
    yield from (line for key, path in files.items() if path and (line := _absent_path(key, path, "file")))
    try:
        refuse_second_run(run_directory(config), config.trainer.resume)
    except RunDirectoryError as error:
        yield f"{error.problem}: {error.remedy}"


def _absent_packages(kind: str, name: str, key: str) -> Iterator[str]:
    from importlib.metadata import PackageNotFoundError, requires, version

    from packaging.requirements import Requirement

    from omni_portable.contracts import registry

    extra = registry.spec(kind, name).extra
    try:
        wanted = [Requirement(text) for text in requires("omni-portable") or []] if extra else []
    except PackageNotFoundError:  # run from a source tree
        return
    for one in wanted:
        if one.marker is None or one.marker.evaluate({"extra": ""}) or not one.marker.evaluate({"extra": extra}):
            continue
        try:
            version(one.name)
        except PackageNotFoundError:
            yield f"{key}={name}: {one.name} is not installed: pip install 'omni-portable[{extra}]'"


def _absent_model(key: str, path: str) -> str:
    from omni_portable.config.assets import HUB_ID, find_model_path
    from omni_portable.config.tiny import TINY

    if path.startswith(TINY) or find_model_path(path) is not None:  # tiny ones are built when they are first used
        return ""
    cached = ", and no download of that name in the hub's cache" if HUB_ID.fullmatch(path) else ""
    return f"{key}={path}: there is no such folder{cached}"


def _absent_path(key: str, path: str, what: str) -> str:
    from omni_portable.config.assets import BUILTIN
    from omni_portable.config.paths import user_path

    if path.startswith(BUILTIN):
        return ""
    place = user_path(path, key)
    there = place.is_dir() if what == "folder" else place.is_file()
    return "" if there else f"{key}={path}: there is no such {what}"
