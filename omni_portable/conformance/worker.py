"""A process of its own for checks that need one: ``python -m omni_portable.conformance.worker TASK ARGUMENTS RESULT``.

ARGUMENTS is a JSON object; RESULT is the file that takes the answer as JSON: {"answer": ...} or, where the device
layer refused or failed, {"error": TEXT}. Anything else that goes wrong is a traceback on standard error.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from omni_portable.config.device_choice import choose_device
from omni_portable.contracts.device import Collectives
from omni_portable.contracts.errors import DeviceError, OmniPortableError

JOIN_S = 120.0
"""Limit of joining a group: the others may still be importing."""


def collectives(device: str, rank: int, world: int, rendezvous: str, timeout_s: float) -> dict[str, float]:
    """Join a group and run the device's self-test; seconds per collective."""
    with _joined(device, rank, world, rendezvous) as group:
        return group.self_test(timeout_s)


def lonely_rank(device: str, rank: int, world: int, rendezvous: str, timeout_s: float) -> dict[str, str]:
    """Join a group and run the self-test that another rank misses; what the device said about it, if anything."""
    with _joined(device, rank, world, rendezvous) as group:
        try:
            group.self_test(timeout_s)
        except DeviceError as error:
            return {"noticed": error.problem}
    return {}


def late_rank(device: str, rank: int, world: int, rendezvous: str, timeout_s: float) -> dict[str, str]:
    """Join a group and stay away from its self-test for ten times the limit."""
    with _joined(device, rank, world, rendezvous):
        time.sleep(10 * timeout_s)
    return {}


@contextmanager
def _joined(device: str, rank: int, world: int, rendezvous: str) -> Iterator[Collectives]:
    import torch.distributed as dist

    group = choose_device(device).collectives
    group.init_process_group(rank, world, f"file://{rendezvous}", JOIN_S)
    try:
        yield group
    finally:
        dist.destroy_process_group()


def training_step(device: str, recipe: str, threads: int, seed: int) -> dict[str, str]:
    """Checksums of one training step of the packaged model."""
    import torch

    from omni_portable.config.loader import load_config
    from omni_portable.conformance.context import Context
    from omni_portable.conformance.measures.training_step import step_checksums

    torch.set_num_threads(threads)
    with tempfile.TemporaryDirectory(prefix="omni-portable-conformance-") as work:
        config = load_config(recipe, [f"device.name={device}"])
        return step_checksums(Context(choose_device(device), config, Path(work)), seed)


TASKS: Mapping[str, Callable[..., Mapping[str, Any]]] = {
    "collectives": collectives,
    "lonely_rank": lonely_rank,
    "late_rank": late_rank,
    "training_step": training_step,
}


def main(argv: Sequence[str]) -> int:
    """Run one task; 0 when RESULT was written."""
    task, arguments, result = argv
    try:
        answer: dict[str, Any] = {"answer": TASKS[task](**json.loads(arguments))}
    except OmniPortableError as error:
        answer = {"error": str(error)}
    Path(result).write_text(json.dumps(answer), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
