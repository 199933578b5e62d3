"""Checkpoints in canonical names and whole tensors: the files of the single-process engine, whatever the layout was.

A run may be continued by another number of ranks, and by `actor.engine=single`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from omni_backends.training.megatron.layout import fuse, share, unfuse
from omni_backends.training.megatron.layout_shape import Shape
from omni_backends.training.megatron.names import place
from omni_backends.training.optim import SLOTS, MasterOptimizer
from omni_backends.training.state import (
    OPTIMIZER,
    STATE_FILE,
    WEIGHTS,
    EngineState,
    check_tensors,
    read_part,
    read_state,
    verify_file,
    write_state,
)
from omni_portable.contracts.errors import CheckpointError

MOMENTS = tuple(slot for slot in SLOTS if slot != "step")
Shapes = Mapping[str, tuple[int, ...]]
Gather = Callable[[str, torch.Tensor], torch.Tensor]
"""Megatron name and this rank's share -> the whole tensor; all ranks of a tensor group call it."""


def save(
    folder: Path,
    optimizer: MasterOptimizer,
    copies: Mapping[str, Mapping[str, torch.Tensor]],
    names: Sequence[str],
    shape: Shape,
    gather: Gather,
    *,
    write: bool,
) -> None:
    """Gather everything, and write it on the rank that is told to.

    Args:
        copies: policy -> Megatron name -> this rank's share.
        names: canonical names of what is trained.

    Raises:
        RunDirectoryError: a file cannot be written.
    """

    def canonical(shares: Mapping[str, torch.Tensor], wanted: Sequence[str]) -> dict[str, torch.Tensor]:
        whole = {name: gather(name, tensor.detach()) for name, tensor in shares.items()}
        return unfuse(whole, wanted, shape) if write else {}

    fused = optimizer.updated_names()  # a list: ranks must gather in the same order
    updated = [name for name in names if place(name, fused_norms=shape.fused_norms).name in fused]
    state = optimizer.state_tensors()
    parts = {policy: canonical(shares, names) for policy, shares in copies.items()}
    parts[WEIGHTS] = canonical(optimizer.masters, names)
    slots: dict[str, torch.Tensor] = {}
    for slot in MOMENTS:
        found = canonical({name: state[f"{slot}/{name}"] for name in fused}, updated)
        slots |= {f"{slot}/{name}": tensor for name, tensor in found.items()}
    slots |= {
        f"step/{name}": state[f"step/{place(name, fused_norms=shape.fused_norms).name}"].clone() for name in updated
    }
    parts[OPTIMIZER] = slots
    if write:
        write_state(folder, EngineState("full", None, optimizer.steps_done, optimizer.learning_rate(), updated), parts)


def check(folder: Path, shapes: Shapes, copies: Sequence[str]) -> EngineState:
    """Verify that every file is there, whole and of this run, before a rank changes anything.

    Args:
        shapes: canonical name -> shape of what this run trains.
        copies: policies that this run keeps.

    Raises:
        CheckpointError: names the file, and what is wrong with it.
    """
    state, files = read_state(folder)
    path = folder / STATE_FILE
    if (state.mode, state.lora) != ("full", None):
        raise CheckpointError(
            f"checkpoint file {path} is of a run that trains {state.mode} weights ({state.lora}), this one trains all",
            remedy="resume with the model.lora section that the checkpoint was made with",
        )
    unknown = sorted(set(state.updated) - set(shapes))
    if unknown:
        raise CheckpointError(f"checkpoint file {path} names '{unknown[0]}', which this model does not train")
    for part in (WEIGHTS, *copies):
        _check_file(folder / f"{part}.safetensors", files, shapes)
    _check_file(folder / f"{OPTIMIZER}.safetensors", files, _slots(state.updated, shapes))
    return state


def load(
    folder: Path,
    optimizer: MasterOptimizer,
    copies: Sequence[str],
    shapes: Shapes,
    shape: Shape,
    rank: int,
    ranks: int,
) -> dict[str, dict[str, torch.Tensor]]:
    """Restore the optimizer from a checked folder; every rank takes its shares.

    Returns:
        Policy -> Megatron name -> this rank's share, of the policies in `copies`.

    Raises:
        CheckpointError: a file is not right after all, or parts that Megatron fuses were updated unequally.
    """
    state, files = read_state(folder)

    def shares(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {name: share(name, tensor, rank, ranks) for name, tensor in fuse(tensors, shape).items()}

    weights = shares(read_part(folder, WEIGHTS, files, shapes))
    slots = read_part(folder, OPTIMIZER, files, _slots(state.updated, shapes))
    others = {policy: shares(read_part(folder, policy, files, shapes)) for policy in copies}
    steps = _steps(folder, state, slots, shape)
    own = {f"step/{name}": torch.tensor(step) for name, step in steps.items()}
    for slot in MOMENTS:
        found = shares({name: slots[f"{slot}/{name}"] for name in state.updated})
        own |= {f"{slot}/{name}": tensor for name, tensor in found.items()}
    optimizer.load_masters(weights)
    optimizer.load_state([name for name in optimizer.masters if name in steps], own, state.optimizer_steps)
    return others


def _steps(folder: Path, state: EngineState, slots: Mapping[str, torch.Tensor], shape: Shape) -> dict[str, float]:
    found: dict[str, float] = {}
    for name in state.updated:
        fused, step = place(name, fused_norms=shape.fused_norms).name, float(slots[f"step/{name}"])
        if found.setdefault(fused, step) != step:
            raise CheckpointError(
                f"checkpoint {folder}: '{name}' was updated {step:g} times, other parts of '{fused}' {found[fused]:g} "
                "times",
                remedy="resume with the actor.engine that the checkpoint was made with",
            )
    return found


def _slots(updated: Sequence[str], shapes: Shapes) -> dict[str, tuple[int, ...]]:
    return {f"{slot}/{name}": () if slot == "step" else shapes[name] for name in updated for slot in SLOTS}


def _check_file(path: Path, files: Mapping[str, Mapping[str, object]], expected: Shapes) -> None:
    if path.name not in files:
        raise CheckpointError(
            f"checkpoint {path.parent} has no {path.name}, which this run's configuration needs",
            remedy="resume with the actor.engine that the checkpoint was made with",
            choices=sorted(files),
        )
    verify_file(path, files[path.name])
    try:
        with safe_open(path, framework="pt") as file:
            heads = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118 - it is no mapping
            found = {name: (tuple(head.get_shape()), _DTYPES.get(head.get_dtype())) for name, head in heads.items()}
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"checkpoint file {path} cannot be read: {error}") from error
    check_tensors(path, {name: (shape, dtype or torch.uint8) for name, (shape, dtype) in found.items()}, expected)


_DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "F64": torch.float64}
