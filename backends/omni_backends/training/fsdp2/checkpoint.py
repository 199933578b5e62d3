"""Sharded checkpoints by `torch.distributed.checkpoint`: each rank writes and reads its own parts, in safetensors.

A folder holds ``weights/``, ``exp_avg/``, ``exp_avg_sq/`` and one folder per policy copy, in each one file per rank
whose header says where its parts lie in the whole; ``steps.safetensors``, AdamW's counter of every updated tensor; and
``engine.json``, as the single-process engine writes it. No file is a pickle. Since parts know their place, any number
of ranks can read what any other number wrote.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp
from safetensors import SafetensorError
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader, HuggingFaceStorageWriter
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

from omni_backends.training.ema import PolicyCopy
from omni_backends.training.fsdp2.shard import like
from omni_backends.training.optim import MasterOptimizer
from omni_backends.training.state import (
    STATE_FILE,
    WEIGHTS,
    EngineState,
    check_tensors,
    fingerprint,
    flush,
    read_part,
    read_state,
    verify_file,
    write_document,
    write_parts,
)
from omni_portable.contracts.disk import disk_errors
from omni_portable.contracts.errors import CheckpointError, RunDirectoryError
from omni_portable.contracts.weights import LoraInfo

MOMENTS = ("exp_avg", "exp_avg_sq")
STEPS = "steps"

Parameters = Mapping[str, torch.nn.Parameter]


@dataclass(frozen=True)
class Saved:
    """What a rank tells the driver beside the files it wrote.

    Args:
        updated: tensors with optimizer state, in order; `steps` are their counters.
        steps_done / lr: of the optimizer.
    """

    updated: list[str]
    steps: list[float]
    steps_done: int
    lr: float


def save_shards(
    folder: Path, parameters: Parameters, optimizer: MasterOptimizer, copies: Mapping[str, PolicyCopy]
) -> Saved:
    """Write this rank's parts; all ranks must call it.

    Raises:
        RunDirectoryError: a file cannot be written.
    """
    updated = optimizer.updated_names()
    state = optimizer.state_tensors()
    parts: dict[str, Mapping[str, torch.Tensor]] = {WEIGHTS: optimizer.masters}
    parts |= {name: copy.tensors() for name, copy in copies.items()}
    parts |= {slot: {name: state[f"{slot}/{name}"] for name in updated} for slot in MOMENTS}
    for part, tensors in parts.items():
        whole = {name: like(parameters[name], tensor.detach()) for name, tensor in tensors.items()}
        if not whole:
            continue
        path = folder / part
        with disk_errors(path):
            path.mkdir(exist_ok=True)
            _save(whole, path)
    steps = [float(state[f"step/{name}"]) for name in updated]
    return Saved(updated, steps, optimizer.steps_done, optimizer.learning_rate())


def _save(whole: dict[str, torch.Tensor], path: Path) -> None:
    """`dcp.save`, whose errors hold those of the ranks: the first complaint about a file is raised instead."""
    try:
        dcp.save(whole, storage_writer=HuggingFaceStorageWriter(str(path), save_distributed=True))
    except dcp.api.CheckpointException as error:
        causes = [cause for cause, _ in error.failures.values() if isinstance(cause, OSError | SafetensorError)]
        if causes:
            raise causes[0] from error
        raise RunDirectoryError(f"{path} cannot be written: {error}") from error


def finish_save(folder: Path, saved: Saved, lora: LoraInfo | None) -> None:
    """Make the ranks' files durable and write what describes them."""
    steps = {STEPS: {STEPS: torch.tensor(saved.steps, dtype=torch.float32)}} if saved.steps else {}
    files = dict(write_parts(folder, steps))
    with disk_errors(folder):
        for path in sorted(folder.rglob("*.safetensors")):
            name = str(path.relative_to(folder))
            if name not in files:
                flush(path)
                files[name] = fingerprint(path)
        for child in folder.iterdir():
            if child.is_dir():
                flush(child)
    write_document(folder, engine_state(saved, lora), files)


def engine_state(saved: Saved, lora: LoraInfo | None) -> EngineState:
    """The content of ``engine.json``."""
    return EngineState(
        mode="full" if lora is None else "adapter",
        lora=None if lora is None else {"rank": lora.rank, "alpha": lora.alpha, "targets": list(lora.targets)},
        optimizer_steps=saved.steps_done,
        lr=saved.lr,
        updated=saved.updated,
    )


def check_checkpoint(
    folder: Path, shapes: Mapping[str, tuple[int, ...]], copies: Sequence[str], lora: LoraInfo | None
) -> tuple[EngineState, list[float]]:
    """Verify that every file is there, whole and of this run, before a rank changes anything.

    Args:
        shapes: canonical name -> whole shape of what this run trains.
        copies: policies that this run keeps.

    Returns:
        The state, and AdamW's counters of `state.updated`.

    Raises:
        CheckpointError: names the file, and what is wrong with it.
    """
    state, files = read_state(folder)
    path = folder / STATE_FILE
    mine = engine_state(Saved([], [], 0, 0.0), lora)
    if (state.mode, state.lora) != (mine.mode, mine.lora):
        raise CheckpointError(
            f"checkpoint file {path} is of a run that trains {state.mode} weights ({state.lora}), this one trains "
            f"{mine.mode} ({mine.lora})",
            remedy="resume with the model.lora section that the checkpoint was made with",
        )
    unknown = sorted(set(state.updated) - set(shapes))
    if unknown:
        raise CheckpointError(f"checkpoint file {path} names '{unknown[0]}', which this model does not train")
    steps: list[float] = []
    if state.updated:
        steps = read_part(folder, STEPS, files, {STEPS: (len(state.updated),)})[STEPS].tolist()
    for part in (WEIGHTS, *copies):
        _check_part(folder, part, files, shapes)
    for part in MOMENTS if state.updated else ():
        _check_part(folder, part, files, {name: shapes[name] for name in state.updated})
    return state, steps


def _check_part(
    folder: Path,
    part: str,
    files: Mapping[str, Mapping[str, object]],
    shapes: Mapping[str, tuple[int, ...]],
) -> None:
    own = [name for name in files if name.startswith(f"{part}/")]
    if not own:
        raise CheckpointError(
            f"checkpoint {folder} has no folder '{part}' of shards, which this run's configuration needs",
            remedy="resume with the actor.engine that the checkpoint was made with",
            choices=sorted({name.partition("/")[0] for name in files}),
        )
    for name in own:
        verify_file(folder / name, files[name])
    extra = sorted(str(path.relative_to(folder)) for path in (folder / part).iterdir())
    if unknown := [name for name in extra if name not in files]:
        raise CheckpointError(f"checkpoint file {folder / unknown[0]} is not among those that were saved")
    try:
        metadata = HuggingFaceStorageReader(str(folder / part)).read_metadata().state_dict_metadata
    except (OSError, SafetensorError, KeyError, ValueError) as error:
        raise CheckpointError(f"the checkpoint's shards in {folder / part} cannot be read: {error}") from error
    found = {
        name: (tuple(entry.size), entry.properties.dtype)
        for name, entry in metadata.items()
        if isinstance(entry, TensorStorageMetadata)
    }
    check_tensors(folder / part, found, shapes)


def load_shards(
    folder: Path,
    parameters: Parameters,
    optimizer: MasterOptimizer,
    copies: Mapping[str, PolicyCopy],
    updated: list[str],
    steps: list[float],
    steps_done: int,
) -> None:
    """Read this rank's parts of a checked folder, all of them before the first is used; all ranks must call it.

    Raises:
        CheckpointError: a file cannot be read after all.
    """

    def read(part: str, names: Sequence[str]) -> dict[str, torch.Tensor]:
        own = {name: torch.empty_like(optimizer.masters[name], requires_grad=False) for name in names}
        if own:
            whole = {name: like(parameters[name], tensor) for name, tensor in own.items()}
            try:
                dcp.load(whole, storage_reader=HuggingFaceStorageReader(str(folder / part)))
            except (OSError, dcp.api.CheckpointException) as error:
                raise CheckpointError(f"the checkpoint's shards in {folder / part} cannot be read: {error}") from error
        return own

    names = list(optimizer.masters)
    weights = read(WEIGHTS, names)
    slots = {f"{slot}/{name}": tensor for slot in MOMENTS for name, tensor in read(slot, updated).items()}
    slots |= {f"step/{name}": torch.tensor(step) for name, step in zip(updated, steps, strict=True)}
    others = {name: read(name, names) for name in copies}
    optimizer.load_masters(weights)
    optimizer.load_state(updated, slots, steps_done)
    for name, tensors in others.items():
        copies[name].load(tensors)


def read_whole(folder: Path, part: str) -> dict[str, torch.Tensor]:
    """One part of a sharded checkpoint as whole tensors, in a process of its own (no ranks are needed).

    Args:
        part: 'weights', 'exp_avg', 'exp_avg_sq' or a policy copy.
    """
    reader = HuggingFaceStorageReader(str(folder / part))
    found = {
        name: torch.empty(entry.size, dtype=entry.properties.dtype)
        for name, entry in reader.read_metadata().state_dict_metadata.items()
        if isinstance(entry, TensorStorageMetadata)
    }
    dcp.load(found, storage_reader=HuggingFaceStorageReader(str(folder / part)), no_dist=True)
    return found
