"""Saving and restoring a train engine's optimizer, weights and policy copies, all or nothing."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from omni_backends.training.ema import PolicyCopy
from omni_backends.training.optim import MasterOptimizer
from omni_backends.training.state import (
    OPTIMIZER,
    STATE_FILE,
    WEIGHTS,
    EngineState,
    read_part,
    read_state,
    write_state,
)
from omni_portable.contracts.errors import CheckpointError
from omni_portable.contracts.weights import LoraInfo


def save_engine(
    folder: Path, optimizer: MasterOptimizer, copies: Mapping[str, PolicyCopy], lora: LoraInfo | None
) -> None:
    """Write everything that :func:`load_engine` needs into an existing folder."""
    parts = {name: copy.tensors() for name, copy in copies.items()}
    parts[WEIGHTS] = dict(optimizer.masters)
    parts[OPTIMIZER] = optimizer.state_tensors()
    write_state(folder, _describe(optimizer, lora), parts)


def load_engine(
    folder: Path, optimizer: MasterOptimizer, copies: Mapping[str, PolicyCopy], lora: LoraInfo | None
) -> None:
    """Restore bit for bit; nothing is changed unless every file is right.

    Raises:
        CheckpointError: a file is missing, truncated, corrupt or does not fit this run; names it.
    """
    state, files = read_state(folder)
    mine = _describe(optimizer, lora)
    path = folder / STATE_FILE
    if (state.mode, state.lora) != (mine.mode, mine.lora):
        raise CheckpointError(
            f"checkpoint file {path} is of a run that trains {state.mode} weights ({state.lora}), this one trains "
            f"{mine.mode} ({mine.lora})",
            remedy="resume with the model.lora section that the checkpoint was made with",
        )
    unknown = sorted(set(state.updated) - set(optimizer.masters))
    if unknown:
        raise CheckpointError(f"checkpoint file {path} names '{unknown[0]}', which this model does not train")
    shapes = {name: tuple(master.shape) for name, master in optimizer.masters.items()}
    weights = read_part(folder, WEIGHTS, files, shapes)
    slots = read_part(folder, OPTIMIZER, files, optimizer.expected_state(state.updated))
    others = {name: read_part(folder, name, files, shapes) for name in copies}
    optimizer.load_masters(weights)
    optimizer.load_state(state.updated, slots, state.optimizer_steps)
    for name, tensors in others.items():
        copies[name].load(tensors)


def _describe(optimizer: MasterOptimizer, lora: LoraInfo | None) -> EngineState:
    return EngineState(
        mode="full" if lora is None else "adapter",
        lora=None if lora is None else {"rank": lora.rank, "alpha": lora.alpha, "targets": list(lora.targets)},
        optimizer_steps=optimizer.steps_done,
        lr=optimizer.learning_rate(),
        updated=optimizer.updated_names(),
    )
