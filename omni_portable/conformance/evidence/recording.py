"""Golden recordings in the package: `assets/golden/<model>/` holds tensors (safetensors) and a JSON file beside them.

The JSON says what was drawn, with which weights, where and with what the recording was made, the scalars of the
training step, how far the same computation on other kernels of the recording machine came from it, and the bounds that
follow from that.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save

from omni_portable.config.assets import BUILTIN, assets_root
from omni_portable.conformance.evidence.settings import GoldenSettings, settings_from
from omni_portable.contracts.errors import ConsistencyError, DataError
from omni_portable.trainer.rundir import write_json

TENSORS, ABOUT = "trajectory.safetensors", "recording.json"
AGAIN = "make the recording again with tools/record_golden.py"


@dataclass(frozen=True)
class Recording:
    """One recording.

    Args:
        tensors: 'CASE/NAME' -> fp32 or uint8 tensor, names as in `replay.Named`; 'gradient/NAME' -> sampled gradient.
        scalars: 'loss', 'grad_norm' and 'group_norm/GROUP' of the training step.
        weights: file of the model folder -> digest.
        provenance: where and with what it was made.
        spread: dtype -> variant -> figure -> distance from the recording, as measured when it was made.
        bounds: dtype -> figure -> largest distance that passes.
    """

    settings: GoldenSettings
    tensors: Mapping[str, torch.Tensor]
    scalars: Mapping[str, float]
    weights: Mapping[str, str]
    provenance: Mapping[str, Any]
    spread: Mapping[str, Mapping[str, Mapping[str, float]]]
    bounds: Mapping[str, Mapping[str, float]]

    def case(self, name: str) -> dict[str, torch.Tensor]:
        """Tensors of one case by their own names."""
        return {key.removeprefix(f"{name}/"): t for key, t in self.tensors.items() if key.startswith(f"{name}/")}


def model_name(path: str) -> str:
    """The name recordings are kept under: that of a packaged model, else the last part of its path."""
    return path.removeprefix(BUILTIN).rstrip("/").rpartition("/")[2]


def golden_folder(path: str, root: Path | None = None) -> Path:
    """Folder of the recordings of the model `path` (as in `model.path`); it need not exist."""
    return (root or assets_root() / "golden") / model_name(path)


def digest_model(folder: Path) -> dict[str, str]:
    """Relative path -> hex blake2b-128 of every weight, configuration and tokenizer file of a model folder."""
    files = sorted(path for path in folder.rglob("*") if path.suffix in (".safetensors", ".json"))
    return {path.relative_to(folder).as_posix(): _digest(path) for path in files}


def write_recording(folder: Path, recording: Recording) -> None:
    """Write both files, replacing those of an older recording."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / TENSORS).write_bytes(save({name: tensor.contiguous() for name, tensor in recording.tensors.items()}))
    about = {
        "format": 1,
        "settings": recording.settings.as_data(),
        "scalars": dict(recording.scalars),
        "weights": dict(recording.weights),
        "provenance": dict(recording.provenance),
        "spread": recording.spread,
        "bounds": recording.bounds,
        "tensors": _digest(folder / TENSORS),
    }
    write_json(folder / ABOUT, about)


def read_recording(folder: Path) -> Recording:
    """The recording in `folder`.

    Raises:
        DataError: a file is missing, damaged or of another recording.
    """
    try:
        about = json.loads((folder / ABOUT).read_text(encoding="utf-8"))
        if about["tensors"] != _digest(folder / TENSORS):
            raise DataError(f"{folder / TENSORS} is not the file that {ABOUT} describes", remedy=AGAIN)
        return Recording(
            settings=settings_from(about["settings"]),
            # Copies are aligned as tensors of torch's own; kernels add in another order where memory is not.
            tensors={name: tensor.clone() for name, tensor in load_file(folder / TENSORS).items()},
            scalars=about["scalars"],
            weights=about["weights"],
            provenance=about["provenance"],
            spread=about["spread"],
            bounds=about["bounds"],
        )
    except (OSError, ValueError, TypeError, LookupError, SafetensorError) as error:
        raise DataError(f"the recording in {folder} is damaged: {error}", remedy=AGAIN) from error


def check_weights(recording: Recording, folder: Path) -> None:
    """Refuse to compare with a recording of other weights.

    Raises:
        ConsistencyError: names the first file that differs.
    """
    found = digest_model(folder)
    for name in sorted(recording.weights.keys() | found.keys()):
        if recording.weights.get(name) != found.get(name):
            raise ConsistencyError(
                f"the recording was made with another '{name}' than the model in {folder} has", remedy=AGAIN
            )


def _digest(path: Path) -> str:
    return hashlib.blake2b(path.read_bytes(), digest_size=16).hexdigest()
