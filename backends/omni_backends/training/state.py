"""A train engine's state on disk: safetensors and JSON, hashed, durable, and checked as a whole before it is used.

Files of a folder (no pickle anywhere):

- ``weights.safetensors``: fp32 masters of the trained tensors by canonical name; ``ema``, ``old`` and ``reference``
  likewise where the run keeps them;
- ``optimizer.safetensors``: '<slot>/<name>' of AdamW, see `optim.SLOTS`;
- where a second network is trained, ``fake.safetensors`` and ``fake_optimizer.safetensors`` likewise;
- ``engine.json``: counters, what was trained, and size and blake2b-128 of every other file.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from omni_portable.contracts.disk import disk_errors
from omni_portable.contracts.errors import CheckpointError

FORMAT = 1
STATE_FILE = "engine.json"
WEIGHTS, OPTIMIZER = "weights", "optimizer"

TensorShapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True)
class OptimizerState:
    """Steps done, and the parameters that have state, of one optimizer."""

    optimizer_steps: int
    updated: list[str]


@dataclass(frozen=True)
class EngineState:
    """What ``engine.json`` says beside the files' hashes.

    Args:
        mode: 'full' or 'adapter', what was trained.
        lora: rank, alpha and targets of the adapter, None in mode 'full'.
        optimizer_steps: optimizer steps done.
        lr: learning rate of the next step, for people; it follows from the steps and the configuration.
        updated: parameters that have optimizer state.
        others: name of a further trained network -> the same of its optimizer.
    """

    mode: str
    lora: Mapping[str, object] | None
    optimizer_steps: int
    lr: float
    updated: list[str]
    others: Mapping[str, OptimizerState] = field(default_factory=dict)


def write_state(folder: Path, state: EngineState, parts: Mapping[str, Mapping[str, torch.Tensor]]) -> None:
    """Write ``<part>.safetensors`` for every part and then ``engine.json``; everything is flushed to the disk.

    Raises:
        RunDirectoryError: a file cannot be written.
    """
    write_document(folder, state, write_parts(folder, parts))


def write_parts(folder: Path, parts: Mapping[str, Mapping[str, torch.Tensor]]) -> dict[str, Mapping[str, object]]:
    """Write ``<part>.safetensors`` for every part; size and hash by file name."""
    return {f"{name}.safetensors": _write_tensors(folder / f"{name}.safetensors", part) for name, part in parts.items()}


def write_document(folder: Path, state: EngineState, files: Mapping[str, Mapping[str, object]]) -> None:
    """Write ``engine.json`` for files that are on the disk already (names relative to the folder)."""
    document = {"format": FORMAT, **asdict(state), "files": files}
    path = folder / STATE_FILE
    with disk_errors(path):
        with open(path, "w", encoding="utf-8") as file:
            json.dump(document, file, indent=2, sort_keys=True)
            file.flush()
            os.fsync(file.fileno())
        flush(folder)


def read_state(folder: Path) -> tuple[EngineState, dict[str, dict[str, object]]]:
    """The state and, per file, its size and hash.

    Raises:
        CheckpointError: ``engine.json`` is missing, unreadable, incomplete or of another format.
    """
    path = folder / STATE_FILE
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"checkpoint file {path} cannot be read: {error}") from error
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise CheckpointError(f"checkpoint file {path} is not of format {FORMAT}, the one this version reads")
    try:
        files = document["files"]
        if not all(set(entry) == {"bytes", "blake2b"} for entry in files.values()):
            raise CheckpointError(f"checkpoint file {path} does not give size and hash of every file")
        state = EngineState(
            mode=str(document["mode"]),
            lora=document["lora"],
            optimizer_steps=int(document["optimizer_steps"]),
            lr=float(document["lr"]),
            updated=[str(name) for name in document["updated"]],
            others={str(name): _optimizer_state(entry) for name, entry in document.get("others", {}).items()},
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CheckpointError(f"checkpoint file {path} is incomplete: {type(error).__name__} {error}") from error
    return state, files


def _optimizer_state(entry: Mapping[str, Any]) -> OptimizerState:
    return OptimizerState(int(entry["optimizer_steps"]), [str(name) for name in entry["updated"]])


def read_part(
    folder: Path, name: str, files: Mapping[str, Mapping[str, object]], expected: TensorShapes
) -> dict[str, torch.Tensor]:
    """Tensors of ``<name>.safetensors``, on the CPU, verified against the recorded hash and the expected shapes.

    Raises:
        CheckpointError: the file is missing, truncated, altered, or holds other tensors than `expected`; names it.
    """
    path = folder / f"{name}.safetensors"
    if path.name not in files:
        raise CheckpointError(
            f"checkpoint {folder} has no {path.name}, which this run's configuration needs", choices=sorted(files)
        )
    verify_file(path, files[path.name])
    try:
        tensors = load_file(path)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"checkpoint file {path} cannot be read: {error}") from error
    found = {key: (tuple(tensor.shape), tensor.dtype) for key, tensor in tensors.items()}
    check_tensors(path, found, expected)
    return tensors


def verify_file(path: Path, recorded: Mapping[str, object]) -> None:
    """Raise CheckpointError unless the file has the recorded size and hash."""
    try:
        found = fingerprint(path)
    except OSError as error:
        raise CheckpointError(f"checkpoint file {path} cannot be read: {error}") from error
    if found != recorded:
        raise CheckpointError(
            f"checkpoint file {path} is corrupt: it has {found['bytes']} bytes and hash {found['blake2b']}, saved "
            f"were {recorded['bytes']} and {recorded['blake2b']}"
        )


def check_tensors(
    path: Path, tensors: Mapping[str, tuple[tuple[int, ...], torch.dtype]], expected: TensorShapes
) -> None:
    """Raise CheckpointError unless shapes and dtypes by name are those of `expected` in fp32."""
    different = sorted(tensors.keys() ^ expected.keys())
    if different:
        where = "lacks" if different[0] in expected else "holds the unexpected"
        raise CheckpointError(f"checkpoint file {path} {where} tensor '{different[0]}' ({len(different)} such names)")
    for name, (shape, dtype) in tensors.items():
        if shape != tuple(expected[name]) or dtype != torch.float32:
            raise CheckpointError(
                f"checkpoint file {path}: tensor '{name}' is {shape} {dtype}, "
                f"expected {tuple(expected[name])} torch.float32"
            )


def _write_tensors(path: Path, tensors: Mapping[str, torch.Tensor]) -> dict[str, object]:
    with disk_errors(path):
        save_file({name: tensor.detach().to("cpu").contiguous() for name, tensor in tensors.items()}, path)
        flush(path)
        return fingerprint(path)


def fingerprint(path: Path) -> dict[str, object]:
    """Size and blake2b-128 of a file."""
    digest = hashlib.blake2b(digest_size=16)
    size = 0
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
            size += len(block)
    return {"bytes": size, "blake2b": digest.hexdigest()}


def flush(path: Path) -> None:
    """Make a file, or a folder's list of files, durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
