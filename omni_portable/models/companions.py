"""What a run loads beside its model, compared with it before weights load: teachers, and saved LoRAs. Torch-free.

A teacher reads the student's own latents and prompt embeddings, so both must speak of the same ones: channels and
patches of latents, widths of embeddings, the autoencoder, text encoders and tokenizers. What is compared is in the
config files of both folders, and in the vocabularies. Weights may differ, and the transformer's depth and inner widths.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from omni_portable.config.convert import renaming
from omni_portable.config.loader import find_model_path, resolve_model_path
from omni_portable.config.paths import user_path
from omni_portable.config.schema import RunConfig
from omni_portable.contracts.errors import CapabilityError, ModelError
from omni_portable.models.extents import check_folder_extent, extent_of
from omni_portable.models.folders import read_json

CONFIG = "config.json"
Fact = tuple[str, object]
"""What is compared ('vae/config.json: scaling_factor'), and its value."""

_READ = (
    "in_channels",
    "out_channels",
    "patch_size",
    "patch_size_t",
    "joint_attention_dim",
    "pooled_projection_dim",
    "caption_channels",
    "text_dim",
    "image_dim",
    "audio_in_channels",
    "audio_out_channels",
    "audio_patch_size",
    "audio_patch_size_t",
)
"""Keys of a transformer's config that say what it reads and predicts."""
_ENCODED = (
    "model_type",
    "vocab_size",
    "hidden_size",
    "d_model",
    "projection_dim",
    "num_hidden_layers",
    "num_layers",
    "num_attention_heads",
    "num_heads",
)
"""Keys of a text encoder's config (of its language model, where that is a part) that its embeddings depend on."""
_COSMETIC = ("sample_size", "force_upcast", "use_slicing", "use_tiling")
"""Keys of an autoencoder's config that change nothing about its latents."""
_VOCABULARIES = ("tokenizer.json", "vocab.json")


def check_companions(config: RunConfig, path: Path | None = None) -> None:
    """Refuse teachers that cannot judge the student's samples, and LoRA folders that are not there.

    Args:
        path: the model's folder. None looks for it and for the teachers' on this machine, builds nothing, and leaves
            out those that are not here.

    Raises:
        CapabilityError: a teacher of other latents, embeddings or tokens; names the key and both values.
        ModelError: a folder that is missing, damaged or of another family; names the key.
        ConfigError: a teacher that cannot draw samples of the rollout's size.
    """
    for key, folder in _lora_folders(config) if path is not None else ():
        if not user_path(folder, key).is_dir():
            raise ModelError(
                f"{key}={folder}: there is no such folder", remedy=f"set {key} to the folder of a saved LoRA (peft)"
            )
    student = path or find_model_path(config.model.path)
    for name in config.model.teachers:
        teacher = teacher_folder(config, name, build=path is not None)
        if student is None or teacher is None:
            continue
        with renaming({"model.path": f"model.teachers.{name}.path"}):
            check_folder_extent(config.model.family, teacher, extent_of(config.rollout))
        _compare(config, name, student, teacher)


def teacher_folder(config: RunConfig, name: str, *, build: bool = True) -> Path | None:
    """The folder of a teacher; None for one that is the student's own base model.

    Args:
        build: builds tiny models that are not there yet; without, a folder that is not on this machine is None too.

    Raises:
        ModelError: a folder that does not exist; ConfigError for an unknown packaged or tiny model. Both name the key.
    """
    path, key = config.model.teachers[name].path, f"model.teachers.{name}.path"
    if not path:
        return None
    with renaming({"model.path": key}):
        if not build:
            return find_model_path(path)
        folder = resolve_model_path(path)
    if not folder.is_dir():
        raise ModelError(
            f"{key}={path}: there is no such folder", remedy=f"set {key} to the folder of a model of the same family"
        )
    return folder


def _lora_folders(config: RunConfig) -> Iterator[tuple[str, str]]:
    if config.model.lora.path:
        yield "model.lora.path", config.model.lora.path
    for name, teacher in config.model.teachers.items():
        if teacher.lora:
            yield f"model.teachers.{name}.lora", teacher.lora


def _compare(config: RunConfig, name: str, student: Path, teacher: Path) -> None:
    own = dict(_facts(student))
    for what, value in _facts(teacher):
        if what in own and own[what] != value:
            shown = "" if isinstance(value, dict) else f": {value!r}, the student's is {own[what]!r}"
            raise CapabilityError(
                f"model.teachers.{name}.path={config.model.teachers[name].path} does not fit "
                f"model.path={config.model.path}: they differ in {what}{shown}",
                remedy="a teacher reads the student's latents, prompt embeddings and tokens: name a model that has the "
                "same autoencoder, text encoders and tokenizer",
            )


def _facts(folder: Path) -> Iterator[Fact]:
    """What must agree, as far as the folder says it."""
    for component in (folder, *sorted(entry for entry in folder.iterdir() if entry.is_dir())):
        prefix = "" if component == folder else f"{component.name}/"
        for file in _VOCABULARIES:
            if (component / file).is_file():
                yield f"the vocabulary of {prefix}{file}", _vocabulary(component / file)
        if (component / CONFIG).is_file():
            for key, value in _wanted(component.name if prefix else "", read_json(component / CONFIG)):
                yield f"{prefix}{CONFIG}, '{key}'", value


def _wanted(component: str, config: Mapping[str, Any]) -> Iterator[Fact]:
    if component.startswith("transformer"):
        yield from ((key, config[key]) for key in _READ if key in config)
    elif "vae" in component or component == "connectors":
        yield from ((k, v) for k, v in config.items() if not k.startswith("_") and k not in _COSMETIC)
    elif component.startswith("text_encoder"):
        text = _language(config)
        yield from ((key, text[key]) for key in _ENCODED if key in text)
    elif not component:
        text = _language(config)
        yield from ((key, text[key]) for key in ("vocab_size",) if key in text)


def _language(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The language model's part of a config."""
    for part in ("thinker_config", "text_config"):
        inner = config.get(part)
        config = inner if isinstance(inner, dict) else config
    return config


def _vocabulary(path: Path) -> object:
    """Token -> id, or the list of tokens, without what libraries write around it."""
    content = read_json(path)
    model = content.get("model")
    return {"vocab": model.get("vocab")} if isinstance(model, dict) else content
