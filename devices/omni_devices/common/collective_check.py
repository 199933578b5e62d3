"""Runs each collective once on inputs whose answers are known; a wrong, failed or late one is an error with its name.

Torch 2.13 renames the flat gather and scatter and deprecates the old names, which are the only ones torch 2.10 has:
:func:`all_gather_flat` and :func:`reduce_scatter_flat` are the one place that knows.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from omni_portable.contracts.errors import DeviceError

ELEMENTS = 1024
"""fp32 elements that each rank contributes (and twice that where a tail must not be lost)."""

_POLL_S = 0.0005


def all_gather_flat(output: Tensor, part: Tensor, *, async_op: bool = False) -> Any:
    """Concatenate every rank's `part` into `output` (world size x as long)."""
    name = "all_gather_single" if hasattr(dist, "all_gather_single") else "all_gather_into_tensor"
    return getattr(dist, name)(output, part, async_op=async_op)


def reduce_scatter_flat(output: Tensor, whole: Tensor, *, async_op: bool = False) -> Any:
    """Sum every rank's `whole` and give each rank its slice in `output`."""
    name = "reduce_scatter_single" if hasattr(dist, "reduce_scatter_single") else "reduce_scatter_tensor"
    return getattr(dist, name)(output, whole, async_op=async_op)


def run_all(device: torch.device, timeout_s: float) -> dict[str, float]:
    """Seconds per collective over the default group.

    Raises:
        DeviceError: a result is wrong, a collective failed, or it took longer than `timeout_s`.
    """
    rank, world = dist.get_rank(), dist.get_world_size()
    cases: dict[str, Callable[[], tuple[Any, Tensor, Tensor]]] = {
        "all_reduce": lambda: _all_reduce(rank, world, device),
        "all_gather_into_tensor": lambda: _all_gather(rank, world, device),
        "reduce_scatter_tensor": lambda: _reduce_scatter(rank, world, device),
        "broadcast": lambda: _broadcast(rank, world, device),
        "all_to_all": lambda: _all_to_all(rank, world, device),
    }
    return {name: _timed(name, start, rank, world, timeout_s) for name, start in cases.items()}


def finish(work: Any, timeout_s: float, device: torch.device) -> None:
    """Wait for a collective, with a deadline on every backend.

    On an accelerator `wait` returns once the work is queued, so the work is asked whether it is done; gloo's work waits
    with a deadline, but some of it never says that it is done.

    Raises:
        RuntimeError: it failed, or is not done after `timeout_s` seconds.
    """
    deadline = time.monotonic() + timeout_s
    while device.type != "cpu" and not work.is_completed():
        if time.monotonic() >= deadline:
            raise RuntimeError("not done in time")
        time.sleep(_POLL_S)
    work.wait(timedelta(seconds=timeout_s))  # raises what went wrong


def _timed(
    name: str, start: Callable[[], tuple[Any, Tensor, Tensor]], rank: int, world: int, timeout_s: float
) -> float:
    started = time.perf_counter()
    try:
        work, result, expected = start()
        finish(work, timeout_s, result.device)
    except RuntimeError as error:
        raise DeviceError(
            f"collective {name} failed on rank {rank} of {world} (limit {timeout_s:g} s): {error}",
            remedy="check that every rank runs and that the interface (GLOO_SOCKET_IFNAME or its like) reaches them",
        ) from error
    if not torch.equal(result.cpu(), expected):
        at = int((result.cpu() != expected).nonzero()[0, 0])
        raise DeviceError(
            f"collective {name} gave rank {rank} of {world} a wrong result: element {at} is {result[at].item()}, not "
            f"{expected[at].item()}",
            remedy="do not train on this installation: check versions of torch and of the collective library",
        )
    return time.perf_counter() - started


def _values(rank: int, length: int) -> Tensor:
    """Integers below 2^24 / world, so that fp32 sums are exact in any order; different on every rank and place."""
    return torch.arange(length, dtype=torch.float32) * 7 + rank * 1000


def _all_reduce(rank: int, world: int, device: torch.device) -> tuple[Any, Tensor, Tensor]:
    result = _values(rank, ELEMENTS).to(device)
    expected = sum((_values(r, ELEMENTS) for r in range(world)), torch.zeros(ELEMENTS))
    return dist.all_reduce(result, async_op=True), result, expected


def _all_gather(rank: int, world: int, device: torch.device) -> tuple[Any, Tensor, Tensor]:
    result = torch.full((world * ELEMENTS,), -1.0, device=device)
    expected = torch.cat([_values(r, ELEMENTS) for r in range(world)])
    return all_gather_flat(result, _values(rank, ELEMENTS).to(device), async_op=True), result, expected


def _reduce_scatter(rank: int, world: int, device: torch.device) -> tuple[Any, Tensor, Tensor]:
    result = torch.full((ELEMENTS,), -1.0, device=device)
    whole = sum((_values(r, world * ELEMENTS) for r in range(world)), torch.zeros(world * ELEMENTS))
    expected = whole[rank * ELEMENTS : (rank + 1) * ELEMENTS]
    return reduce_scatter_flat(result, _values(rank, world * ELEMENTS).to(device), async_op=True), result, expected


def _broadcast(rank: int, world: int, device: torch.device) -> tuple[Any, Tensor, Tensor]:
    root = world - 1
    result = _values(rank, ELEMENTS).to(device)
    return dist.broadcast(result, src=root, async_op=True), result, _values(root, ELEMENTS)


def _all_to_all(rank: int, world: int, device: torch.device) -> tuple[Any, Tensor, Tensor]:
    result = torch.full((world * ELEMENTS,), -1.0, device=device)
    mine = slice(rank * ELEMENTS, (rank + 1) * ELEMENTS)
    expected = torch.cat([_values(r, world * ELEMENTS)[mine] for r in range(world)])
    return (
        dist.all_to_all_single(result, _values(rank, world * ELEMENTS).to(device), async_op=True),
        result,
        expected,
    )
