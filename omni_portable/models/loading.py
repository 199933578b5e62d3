"""Reading model folders in diffusers / transformers format: everything is checked, nothing is downloaded or guessed.

The libraries' own loaders do the work. What they let pass with a warning (missing or unexpected tensors, a pickle where
safetensors are absent) is an error here, and every error names the file.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import diffusers.utils.logging as diffusers_logging
import torch
import transformers.utils.logging as transformers_logging
from safetensors import SafetensorError, safe_open

from omni_portable.contracts.errors import ModelError

DIFFUSERS_STEM = "diffusion_pytorch_model"
TRANSFORMERS_STEM = "model"
_LIBRARY_LOGGING: tuple[Any, ...] = (diffusers_logging, transformers_logging)


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file of a model folder; `ModelError` names the file that is missing or broken."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ModelError(f"the model file {path} does not exist", remedy="download the complete folder") from error
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(f"the model file {path} cannot be read: {error}", remedy="download it again") from error
    if not isinstance(content, dict):
        raise ModelError(f"the model file {path} holds no JSON object")
    return content


def read_model_index(folder: Path, pipeline: str) -> dict[str, Any]:
    """`model_index.json` of a folder, checked to describe the wanted pipeline class."""
    if not folder.is_dir():
        raise ModelError(
            f"the model folder {folder} does not exist",
            remedy="set model.path to a local folder in diffusers format (it holds a model_index.json)",
        )
    index = read_json(folder / "model_index.json")
    if index.get("_class_name") != pipeline:
        raise ModelError(
            f"{folder / 'model_index.json'} describes a {index.get('_class_name')}, not a {pipeline}",
            remedy="set model.family to the family of this folder, or model.path to a folder of this family",
        )
    return index


def check_component_class(folder: Path, index: Mapping[str, Any], component: str, expected: str) -> None:
    """Compare a component's class in `model_index.json` with the one that will be loaded."""
    found = component_class(index, component)
    if found != expected:
        raise ModelError(
            f"{folder / 'model_index.json'} lists '{component}' as {found}, this family loads a {expected}"
        )


def component_class(index: Mapping[str, Any], component: str) -> object:
    """The class in a component's entry, [LIBRARY, CLASS], of `model_index.json`; None where there is none."""
    entry = index.get(component)
    if entry is None:
        return None
    return entry[1] if isinstance(entry, list) and len(entry) == 2 else f"{entry!r} instead of [LIBRARY, CLASS]"


def whole_numbers(path: Path, config: Mapping[str, Any], keys: Sequence[str]) -> None:
    """`ModelError` unless every key of a config file is there and a whole number above 0."""
    for key in keys:
        if key not in config:
            raise ModelError(f"the model file {path} lacks the key '{key}'", remedy="download it again")
        value = config[key]
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ModelError(f"the model file {path}: '{key}' is {value!r}, not a whole number above 0")


def weight_files(folder: Path, stem: str) -> list[Path]:
    """The safetensors files of a component, whole or sharded, each opened once and checked for completeness.

    Raises:
        ModelError: no weights, both a whole file and an index, a missing shard, a tensor that its shard does not hold,
            or a truncated or corrupt file.
    """
    whole, index = folder / f"{stem}.safetensors", folder / f"{stem}.safetensors.index.json"
    if whole.is_file() and index.is_file():
        raise ModelError(f"{folder} holds both {whole.name} and {index.name}", remedy="remove the one that is stale")
    if whole.is_file():
        _tensor_names(whole)
        return [whole]
    if not index.is_file():
        held = ", ".join(sorted(p.name for p in folder.iterdir())) if folder.is_dir() else ""
        raise ModelError(
            f"the model file {whole} does not exist (nor {index.name}); {folder} holds: {held or 'nothing'}",
            remedy="download the complete folder; weights must be safetensors without a variant in their name",
        )
    names_of: dict[str, set[str]] = {}
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map or not all(isinstance(v, str) for v in weight_map.values()):
        raise ModelError(f"{index} has no weight_map from tensors to files")
    for name, shard in weight_map.items():
        names_of.setdefault(shard, set()).add(name)
    for shard, names in sorted(names_of.items()):
        absent = names - _tensor_names(folder / shard)
        if absent:
            raise ModelError(
                f"{folder / shard} lacks {len(absent)} tensors that {index.name} puts there: {min(absent)}"
            )
    return [folder / shard for shard in sorted(names_of)]


def load_diffusers(cls: Any, folder: Path, dtype: torch.dtype) -> torch.nn.Module:
    """A diffusers model from its folder, in evaluation mode on the CPU."""
    config = read_json(folder / "config.json")
    if config.get("_class_name") != cls.__name__:
        raise ModelError(f"{folder / 'config.json'} describes a {config.get('_class_name')}, not a {cls.__name__}")
    files = weight_files(folder, DIFFUSERS_STEM)

    def load() -> tuple[torch.nn.Module, Mapping[str, Any]]:
        loaded: tuple[torch.nn.Module, Mapping[str, Any]] = cls.from_pretrained(
            folder, dtype=dtype, use_safetensors=True, local_files_only=True, output_loading_info=True
        )
        return loaded

    return _load(load, folder, files)


def load_transformers(
    cls: Any, folder: Path, dtype: torch.dtype, attention: str, *, whole: str = "", ignored: tuple[str, ...] = ()
) -> torch.nn.Module:
    """A transformers model from its folder, in evaluation mode on the CPU, with the given attn_implementation.

    Args:
        whole: name of a larger model whose folder may be given too, of which `cls` is a part.
        ignored: prefixes of that folder's tensors which the part does not have.
    """
    config = read_json(folder / "config.json")
    described = config.get("architectures") or [cls.__name__]
    if not isinstance(described, list) or not {cls.__name__, whole} & set(described):
        found = described[0] if isinstance(described, list) else described
        raise ModelError(f"{folder / 'config.json'} describes a {found}, not a {cls.__name__}")
    files = weight_files(folder, TRANSFORMERS_STEM)

    def load() -> tuple[torch.nn.Module, Mapping[str, Any]]:
        loaded: tuple[torch.nn.Module, dict[str, Any]] = cls.from_pretrained(
            folder,
            dtype=dtype,
            attn_implementation=attention,
            use_safetensors=True,
            local_files_only=True,
            output_loading_info=True,
        )
        loaded[1]["unexpected_keys"] = [
            name for name in loaded[1]["unexpected_keys"] if not str(name).startswith(ignored)
        ]
        return loaded

    return _load(load, folder, files)


def load_tokenizer(cls: Any, folder: Path, vocabularies: Sequence[tuple[str, ...]]) -> Any:
    """A tokenizer from its folder.

    Args:
        vocabularies: sets of files, one of which must be complete (a tokenizer without them would load empty).
    """
    if not any(all((folder / name).is_file() for name in names) for names in vocabularies):
        needed = " or ".join(" + ".join(names) for names in vocabularies)
        raise ModelError(f"the tokenizer folder {folder} lacks its vocabulary ({needed})")
    try:
        with quiet_libraries():
            return cls.from_pretrained(folder, local_files_only=True)
    except Exception as error:  # noqa: BLE001 - on damaged files the libraries raise errors of every kind
        raise ModelError(f"the tokenizer in {folder} cannot be loaded: {error}") from error


@contextmanager
def quiet_libraries() -> Iterator[None]:
    """Keep the libraries' progress bars and warnings out of the run's output while a model loads."""
    found = [(log, log.get_verbosity(), log.is_progress_bar_enabled()) for log in _LIBRARY_LOGGING]
    for log in _LIBRARY_LOGGING:
        log.set_verbosity_error()
        log.disable_progress_bar()
    try:
        yield
    finally:
        for log, verbosity, bars in found:
            log.set_verbosity(verbosity)
            if bars:
                log.enable_progress_bar()


def _tensor_names(path: Path) -> set[str]:
    try:
        with safe_open(path, framework="pt") as file:
            return set(file.keys())
    except FileNotFoundError as error:
        raise ModelError(f"the model file {path} does not exist", remedy="download the complete folder") from error
    except (OSError, SafetensorError) as error:
        raise ModelError(
            f"the model file {path} is truncated or corrupt ({path.stat().st_size} bytes): {error}",
            remedy="download it again",
        ) from error


def _load(
    load: Callable[[], tuple[torch.nn.Module, Mapping[str, Any]]], folder: Path, files: Sequence[Path]
) -> torch.nn.Module:
    weights = ", ".join(str(path) for path in files)
    try:
        with quiet_libraries():
            model, info = load()
    except Exception as error:  # noqa: BLE001 - on damaged files the libraries raise errors of every kind
        raise ModelError(
            f"{folder / 'config.json'} and {weights} do not make a model: {error}",
            remedy="config and weights must come from the same checkpoint",
        ) from error
    for problem in ("missing_keys", "unexpected_keys", "mismatched_keys", "error_msgs"):
        names = sorted(str(name) for name in info.get(problem) or ())
        if names:
            raise ModelError(
                f"{weights} does not fit {folder / 'config.json'}: {len(names)} {problem.replace('_', ' ')}, "
                f"first '{names[0]}'",
                remedy="config and weights must come from the same checkpoint",
            )
    _own_buffers(model)
    return model.eval()


def _own_buffers(module: torch.nn.Module) -> None:
    """Give every buffer that is a view a tensor of its own.

    Loaders leave buffers as views of a mapped file; the view keeps its base alive, and with it memory that sleep could
    not release (parameters are detached from theirs when they are made).
    """
    for child in module.modules():
        for name, buffer in child._buffers.items():
            if buffer is not None and buffer._is_view():
                child._buffers[name] = buffer.detach().clone()
