"""What a run reads, beside its configuration, that decides its numbers: digests of prompt files, models and adapters.

A path in a configuration says nothing of what lies there. Files of up to :data:`WHOLE` bytes are digested whole, larger
ones by their size and :data:`BLOCKS` blocks spread over them: cheap for weights of any size, and other weights differ
in nearly every block.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from omni_portable.config.assets import find_model_path
from omni_portable.config.paths import user_path
from omni_portable.config.schema import RunConfig
from omni_portable.contracts.errors import CheckpointError, OmniPortableError
from omni_portable.data.lazy import LazyMedia
from omni_portable.data.prompts import PromptRow, prompt_file
from omni_portable.trainer.rundir import run_directory

FILE = "inputs.json"
"""In a checkpoint: key -> {path, digest}."""
WHOLE, BLOCKS, BLOCK = 8 << 20, 64, 64 << 10
FOLDER_SUFFIXES = frozenset(
    {".bin", ".jinja", ".json", ".jsonl", ".model", ".onnx", ".parquet", ".pt", ".pth", ".safetensors", ".txt"}
)
"""Files of a folder that count; notes beside them do not."""
OPTION_SECTIONS = ("actor.options.", "algorithm.", "model.options.", "reward.scorers.", "rollout.options.")
"""Where plugins have options of their own; an option whose name ends like one of :data:`PATH_WORDS`, or whose value has
a separator, may name a file or folder."""
PATH_WORDS = ("path", "file", "folder", "dir", "weights")

Inputs = Mapping[str, Mapping[str, str]]


def run_inputs(
    config: RunConfig, settings: Mapping[str, Any], train: Sequence[PromptRow], validation: Sequence[PromptRow]
) -> dict[str, dict[str, str]]:
    """Configuration key -> path and digest of what it names.

    Args:
        settings: dotted key -> value, as `saving.deciding_keys` has them.
        train / validation: the prompts, whose media files count by name and size.
    """
    return {
        key: {"path": str(path), "digest": digest(path, media)}
        for key, path, media in _named(config, settings, train, validation)
    }


def check_inputs(folder: Path, then: Inputs, now: Inputs) -> None:
    """Refuse to go on with other contents than a checkpoint was made with.

    Raises:
        CheckpointError: names every key whose contents have changed.
    """
    both = [key for key in now if key in then]
    changed = [f"{key} ({now[key]['path']})" for key in both if then[key]["digest"] != now[key]["digest"]]
    if changed:
        raise CheckpointError(
            f"checkpoint {folder} was made with other contents of {', '.join(changed)}: changed since then",
            remedy="bring back what was there; to go on with the new contents deliberately, start a new run in another "
            "trainer.run_dir (docs/user-guide.md says how it begins with what this one has learnt)",
        )


def _named(
    config: RunConfig, settings: Mapping[str, Any], train: Sequence[PromptRow], validation: Sequence[PromptRow]
) -> Iterator[tuple[str, Path, Iterable[str]]]:
    if train:
        yield "data.train", prompt_file(config.data.train, "train"), _media(train)
    if validation:
        yield "data.validation", prompt_file(config.data.validation, "validation"), _media(validation)
    models = {"model.path": config.model.path}
    models |= {f"model.teachers.{name}.path": teacher.path for name, teacher in config.model.teachers.items()}
    for key, text in models.items():
        folder = find_model_path(text) if text else None
        if folder is not None:
            yield key, folder, ()
    adapters = {"model.lora.path": config.model.lora.path}
    adapters |= {f"model.teachers.{name}.lora": teacher.lora for name, teacher in config.model.teachers.items()}
    options = {key: value for key, value in settings.items() if _may_be_path(key, value)}
    run = run_directory(config).resolve()  # a folder around it changes with every step
    for key, text in (adapters | options).items():
        if text and (path := user_path(text, key)).exists() and not run.is_relative_to(path.resolve()):
            yield key, path, ()


def _may_be_path(key: str, value: object) -> bool:
    named = key.endswith(PATH_WORDS) or (isinstance(value, str) and os.sep in value)
    return isinstance(value, str) and key.startswith(OPTION_SECTIONS) and named and "\n" not in value


def _media(rows: Sequence[PromptRow]) -> Iterator[str]:
    """Name and size of every media file of the rows; media inside the prompt file are digested with it."""
    for row in rows:
        for media in (row.media, *row.targets):
            for name, source in media.sources if isinstance(media, LazyMedia) else ():
                if isinstance(source, Path):
                    yield f"{name}:{source.name}:{source.stat().st_size}"


def digest(path: Path, more: Iterable[str] = ()) -> str:
    """Digest of a file, or of the files below a folder with their relative names; `more` goes in as well."""
    total = hashlib.blake2b(digest_size=16)
    try:
        for file in [path] if path.is_file() else _files(path):
            name = "" if file == path else file.relative_to(path).as_posix()
            total.update(f"{name}:{_file_digest(file)}\n".encode("utf-8", "surrogateescape"))
        for text in more:
            total.update(f"{text}\n".encode("utf-8", "surrogateescape"))
    except OSError as error:
        raise OmniPortableError(f"{error.filename or path}, which this run uses, cannot be read: {error}") from error
    return total.hexdigest()


def _files(folder: Path) -> list[Path]:
    found = (path for path in folder.rglob("*") if path.suffix in FOLDER_SUFFIXES and path.is_file())
    return sorted(path for path in found if not any(p.startswith(".") for p in path.relative_to(folder).parts))


def _file_digest(path: Path) -> str:
    content = hashlib.blake2b(digest_size=16)
    size = path.stat().st_size
    content.update(str(size).encode())
    with open(path, "rb") as file:
        if size <= WHOLE:
            content.update(file.read())
        else:
            for block in range(BLOCKS):
                file.seek((size - BLOCK) * block // (BLOCKS - 1))
                content.update(file.read(BLOCK))
    return content.hexdigest()
