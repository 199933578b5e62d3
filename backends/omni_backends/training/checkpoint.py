"""Saving and restoring a train engine's optimizers, weights and policy copies, all or nothing."""

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
    OptimizerState,
    read_part,
    read_state,
    write_state,
)
from omni_portable.contracts.errors import CheckpointError
from omni_portable.contracts.weights import LoraInfo

Optimizers = Mapping[str, MasterOptimizer]
"""Name of a policy copy that is trained itself -> its optimizer."""


def save_engine(
    folder: Path,
    optimizer: MasterOptimizer,
    copies: Mapping[str, PolicyCopy],
    lora: LoraInfo | None,
    trained: Optimizers | None = None,
) -> None:
    """Write everything that :func:`load_engine` needs into an existing folder."""
    parts = {name: copy.tensors() for name, copy in copies.items()}
    parts[WEIGHTS] = dict(optimizer.masters)
    parts[OPTIMIZER] = optimizer.state_tensors()
    parts |= {_file(name): other.state_tensors() for name, other in (trained or {}).items()}
    write_state(folder, _describe(optimizer, lora, trained or {}), parts)


def load_engine(
    folder: Path,
    optimizer: MasterOptimizer,
    copies: Mapping[str, PolicyCopy],
    lora: LoraInfo | None,
    trained: Optimizers | None = None,
) -> None:
    """Restore bit for bit; nothing is changed unless every file is right.

    Raises:
        CheckpointError: a file is missing, truncated, corrupt or does not fit this run; names it.
    """
    state, files = read_state(folder)
    mine = _describe(optimizer, lora, trained or {})
    path = folder / STATE_FILE
    if (state.mode, state.lora) != (mine.mode, mine.lora):
        raise CheckpointError(
            f"checkpoint file {path} is of a run that trains {state.mode} weights ({state.lora}), this one trains "
            f"{mine.mode} ({mine.lora})",
            remedy="resume with the model.lora section that the checkpoint was made with",
        )
    shapes = {name: tuple(master.shape) for name, master in optimizer.masters.items()}
    networks = [(OPTIMIZER, optimizer, OptimizerState(state.optimizer_steps, state.updated))]
    for name, other in (trained or {}).items():
        if name not in state.others:
            raise CheckpointError(
                f"checkpoint file {path} knows no optimizer of the '{name}' network, which this run trains",
                remedy="resume with the algorithm that the checkpoint was made with",
                choices=sorted(state.others),
            )
        networks.append((_file(name), other, state.others[name]))
    for _, each, saved in networks:
        unknown = sorted(set(saved.updated) - set(each.masters))
        if unknown:
            raise CheckpointError(f"checkpoint file {path} names '{unknown[0]}', which this model does not train")
    weights = read_part(folder, WEIGHTS, files, shapes)
    slots = [read_part(folder, file, files, each.expected_state(saved.updated)) for file, each, saved in networks]
    others = {name: read_part(folder, name, files, shapes) for name in copies}
    optimizer.load_masters(weights)
    for name, tensors in others.items():
        copies[name].load(tensors)
    for (_, each, saved), read in zip(networks, slots, strict=True):
        each.load_state(saved.updated, read, saved.optimizer_steps)


def _file(name: str) -> str:
    return f"{name}_{OPTIMIZER}"


def _describe(optimizer: MasterOptimizer, lora: LoraInfo | None, trained: Optimizers) -> EngineState:
    return EngineState(
        mode="full" if lora is None else "adapter",
        lora=None if lora is None else {"rank": lora.rank, "alpha": lora.alpha, "targets": list(lora.targets)},
        optimizer_steps=optimizer.steps_done,
        lr=optimizer.learning_rate(),
        updated=optimizer.updated_names(),
        others={name: OptimizerState(other.steps_done, other.updated_names()) for name, other in trained.items()},
    )
