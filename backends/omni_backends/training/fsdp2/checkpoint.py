"""Sharded checkpoints by `torch.distributed.checkpoint`: each rank writes and reads its own parts, in safetensors.

A folder holds ``weights/``, ``exp_avg/``, ``exp_avg_sq/`` and one folder per policy copy, in each one file per rank
whose header says where its parts lie in the whole; ``steps.safetensors``, AdamW's counter of every updated tensor; for
a copy that is trained itself the same beside it (``fake_exp_avg/``, ..., ``fake_steps.safetensors``); and
``engine.json``, as the single-process engine writes it. No file is a pickle. Since parts know their place, any number
of ranks can read what any other number wrote.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
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
    OptimizerState,
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
Optimizers = Mapping[str, MasterOptimizer]
"""Name of a policy copy that is trained itself -> its optimizer."""


@dataclass(frozen=True)
class Saved:
    """Counters of an optimizer, which a checkpoint holds beside the shards.

    Args:
        updated: tensors with optimizer state, in order; `steps` are their counters.
        steps_done / lr: of the optimizer.
        others: the same of further trained networks, by name.
    """

    updated: list[str]
    steps: list[float]
    steps_done: int
    lr: float = 0.0
    others: Mapping[str, Saved] = field(default_factory=dict)

    @classmethod
    def of(cls, optimizer: MasterOptimizer, others: Optimizers | None = None) -> Saved:
        """The counters of an optimizer as they are now."""
        updated, state = optimizer.updated_names(), optimizer.state_tensors()
        steps = [float(state[f"step/{name}"]) for name in updated]
        further = {name: cls.of(other) for name, other in (others or {}).items()}
        return cls(updated, steps, optimizer.steps_done, optimizer.learning_rate(), further)


def save_shards(
    folder: Path,
    parameters: Parameters,
    optimizer: MasterOptimizer,
    copies: Mapping[str, PolicyCopy],
    trained: Optimizers | None = None,
) -> Saved:
    """Write this rank's parts; all ranks must call it.

    Args:
        trained: optimizers of copies that are trained themselves.

    Raises:
        RunDirectoryError: a file cannot be written.
    """
    parts: dict[str, Mapping[str, torch.Tensor]] = {WEIGHTS: optimizer.masters}
    parts |= {name: copy.tensors() for name, copy in copies.items()}
    for prefix, each in {"": optimizer, **{f"{name}_": other for name, other in (trained or {}).items()}}.items():
        state = each.state_tensors()
        parts |= {
            f"{prefix}{slot}": {name: state[f"{slot}/{name}"] for name in each.updated_names()} for slot in MOMENTS
        }
    for part, tensors in parts.items():
        whole = {name: like(parameters[name], tensor.detach()) for name, tensor in tensors.items()}
        if not whole:
            continue
        path = folder / part
        with disk_errors(path):
            path.mkdir(exist_ok=True)
            _save(whole, path)
    return Saved.of(optimizer, trained)


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
    counted = {STEPS: saved.steps} | {f"{name}_{STEPS}": other.steps for name, other in saved.others.items()}
    steps = {part: {STEPS: torch.tensor(found, dtype=torch.float32)} for part, found in counted.items() if found}
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
        others={name: OptimizerState(other.steps_done, other.updated) for name, other in saved.others.items()},
    )


def check_checkpoint(
    folder: Path,
    shapes: Mapping[str, tuple[int, ...]],
    copies: Sequence[str],
    lora: LoraInfo | None,
    trained: Sequence[str] = (),
) -> Saved:
    """Verify that every file is there, whole and of this run, before a rank changes anything.

    Args:
        shapes: canonical name -> whole shape of what this run trains.
        copies: policies that this run keeps.
        trained: those of them with an optimizer of their own.

    Returns:
        The counters.

    Raises:
        CheckpointError: names the file, and what is wrong with it.
    """
    state, files = read_state(folder)
    path = folder / STATE_FILE
    mine = engine_state(Saved([], [], 0), lora)
    if (state.mode, state.lora) != (mine.mode, mine.lora):
        raise CheckpointError(
            f"checkpoint file {path} is of a run that trains {state.mode} weights ({state.lora}), this one trains "
            f"{mine.mode} ({mine.lora})",
            remedy="resume with the model.lora section that the checkpoint was made with",
        )
    for name in trained:
        if name not in state.others:
            raise CheckpointError(
                f"checkpoint file {path} knows no optimizer of the '{name}' network, which this run trains",
                remedy="resume with the algorithm that the checkpoint was made with",
                choices=sorted(state.others),
            )
    for part in (WEIGHTS, *copies):
        _check_part(folder, part, files, shapes)
    others = {name: _check_optimizer(folder, f"{name}_", state.others[name], files, shapes) for name in trained}
    own = OptimizerState(state.optimizer_steps, state.updated)
    return replace(_check_optimizer(folder, "", own, files, shapes), lr=state.lr, others=others)


def _check_optimizer(
    folder: Path,
    prefix: str,
    state: OptimizerState,
    files: Mapping[str, Mapping[str, object]],
    shapes: Mapping[str, tuple[int, ...]],
) -> Saved:
    """Counters of one optimizer, whose shards were checked.

    Args:
        prefix: of its parts.
    """
    unknown = sorted(set(state.updated) - set(shapes))
    if unknown:
        raise CheckpointError(
            f"checkpoint file {folder / STATE_FILE} names '{unknown[0]}', which this model does not train"
        )
    if not state.updated:
        return Saved([], [], state.optimizer_steps)
    steps = read_part(folder, f"{prefix}{STEPS}", files, {STEPS: (len(state.updated),)})[STEPS]
    for slot in MOMENTS:
        _check_part(folder, f"{prefix}{slot}", files, {name: shapes[name] for name in state.updated})
    return Saved(state.updated, steps.tolist(), state.optimizer_steps)


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
    saved: Saved,
    trained: Optimizers | None = None,
) -> None:
    """Read this rank's parts of a checked folder, all of them before the first is used; all ranks must call it.

    Args:
        saved: as :func:`check_checkpoint` found it.
        trained: as of :func:`save_shards`.

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

    def slots(prefix: str, one: Saved) -> dict[str, torch.Tensor]:
        parts = {slot: read(f"{prefix}{slot}", one.updated) for slot in MOMENTS}
        found = {f"{slot}/{name}": tensor for slot, part in parts.items() for name, tensor in part.items()}
        return found | {f"step/{name}": torch.tensor(step) for name, step in zip(one.updated, one.steps, strict=True)}

    names = list(optimizer.masters)
    weights, others = read(WEIGHTS, names), {name: read(name, names) for name in copies}
    optimizers = [("", optimizer, saved)]
    optimizers += [(f"{name}_", other, saved.others[name]) for name, other in (trained or {}).items()]
    states = [slots(prefix, one) for prefix, _, one in optimizers]
    optimizer.load_masters(weights)
    for name, tensors in others.items():
        copies[name].load(tensors)
    for (_, each, one), state in zip(optimizers, states, strict=True):
        each.load_state(one.updated, state, one.steps_done)


def read_whole(folder: Path, part: str) -> dict[str, torch.Tensor]:
    """One part of a sharded checkpoint as whole tensors, in a process of its own (no ranks are needed).

    Args:
        part: 'weights', 'exp_avg', 'exp_avg_sq', a policy copy, or 'fake_exp_avg' and the like.
    """
    reader = HuggingFaceStorageReader(str(folder / part))
    found = {
        name: torch.empty(entry.size, dtype=entry.properties.dtype)
        for name, entry in reader.read_metadata().state_dict_metadata.items()
        if isinstance(entry, TensorStorageMetadata)
    }
    dcp.load(found, storage_reader=HuggingFaceStorageReader(str(folder / part)), no_dist=True)
    return found
