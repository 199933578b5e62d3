"""What a model folder's files say, read and checked without torch: config files, and names and shapes of tensors.

Folders are in diffusers / transformers format. Everything is checked, nothing is downloaded or guessed, and every error
names the file.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from omni_portable.contracts.errors import ModelError

DIFFUSERS_STEM = "diffusion_pytorch_model"
TRANSFORMERS_STEM = "model"

KINDS = ("model_index.json", "modular_model_index.json", "config.json")
"""Files of which a folder has the one that says what it holds: a pipeline, a modular one, or a language model."""
HEADER_LIMIT = 100_000_000
"""Bytes; a longer header is refused by the library too."""

Shapes = Mapping[str, tuple[int, ...]]
"""Tensor name -> shape."""


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file of a model folder; `ModelError` names the file that is missing or broken."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise _absent(path) from error
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(f"the model file {path} cannot be read: {error}", remedy="download it again") from error
    if not isinstance(content, dict):
        raise ModelError(f"the model file {path} holds no JSON object")
    return content


def _absent(path: Path) -> ModelError:
    """The error for a file that is not there; it says so where the folder holds a model of another kind."""
    other = next((path.parent / name for name in KINDS if (path.parent / name).is_file()), None)
    if path.name not in KINDS or other is None:
        return ModelError(f"the model file {path} does not exist", remedy="download the complete folder")
    found = read_json(other)
    architectures = found.get("architectures") or [found.get("model_type")]
    held = found.get("_class_name") or architectures[0]
    return ModelError(
        f"{path.parent} has no {path.name}: by its {other.name} it holds a {held}",
        remedy="set model.family to the family of this folder, or model.path to a folder of this family",
    )


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
        _shapes(whole)
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
        absent = names - set(_shapes(folder / shard))
        if absent:
            raise ModelError(
                f"{folder / shard} lacks {len(absent)} tensors that {index.name} puts there: {min(absent)}"
            )
    return [folder / shard for shard in sorted(names_of)]


def weight_shapes(folder: Path, stem: str) -> dict[str, tuple[int, ...]]:
    """Shape of every tensor of a component, from the headers of its weight files; no tensor is read.

    Raises:
        ModelError: as :func:`weight_files`.
    """
    return {name: shape for path in weight_files(folder, stem) for name, shape in _shapes(path).items()}


def _shapes(path: Path) -> dict[str, tuple[int, ...]]:
    """Names and shapes from the header of a safetensors file: 8 bytes of length, then JSON with offsets of tensors.

    Read here rather than by the library, which brings numpy along.
    """
    try:
        size = path.stat().st_size
        with open(path, "rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if not 2 <= length <= min(size - 8, HEADER_LIMIT):
                raise ValueError(f"its header cannot be {length} bytes long")
            header = json.loads(file.read(length))
        header.pop("__metadata__", None)
        end = max((int(entry["data_offsets"][1]) for entry in header.values()), default=0)
        if 8 + length + end != size:
            raise ValueError(f"its header describes {8 + length + end} bytes")
        return {name: tuple(int(side) for side in entry["shape"]) for name, entry in header.items()}
    except FileNotFoundError as error:
        raise ModelError(f"the model file {path} does not exist", remedy="download the complete folder") from error
    except (OSError, ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError) as error:
        raise ModelError(
            f"the model file {path} is truncated or corrupt ({path.stat().st_size} bytes): {error}",
            remedy="download it again",
        ) from error
