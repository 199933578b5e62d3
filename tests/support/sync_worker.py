"""A rollout worker of tests in a process of its own: calls as JSON lines on stdin, answers on stdout.

    python -m tests.support.sync_worker RANK NAME:SHAPE...

holds fp32 zeros; a shape is '30000' or '4x32'.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from omni_backends.sync import WeightReceiver
from tests.support.sync_target import InPlaceTarget

ROOT = Path(__file__).parents[2]


class ProcessWorkers:
    """Worker processes behind an engine's call: all are asked before the first is awaited."""

    def __init__(self, count: int, shapes: Mapping[str, Sequence[int]]) -> None:
        held = [f"{name}:{'x'.join(map(str, shape))}" for name, shape in shapes.items()]
        self.processes = [
            subprocess.Popen(
                [sys.executable, "-m", "tests.support.sync_worker", str(rank), *held],
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for rank in range(count)
        ]

    def __call__(self, method: str, arguments: dict[str, Any]) -> list[Any]:
        asked = [_ask(process, json.dumps([method, arguments])) for process in self.processes]
        return [_answer(process) if alive else "died" for process, alive in zip(self.processes, asked, strict=True)]

    def close(self) -> None:
        for process in self.processes:
            process.kill()
            process.communicate()


def _ask(process: subprocess.Popen[str], line: str) -> bool:
    assert process.stdin is not None
    try:
        process.stdin.write(line + "\n")
        process.stdin.flush()
    except BrokenPipeError:
        return False
    return True


def _answer(process: subprocess.Popen[str]) -> Any:
    assert process.stdout is not None
    return json.loads(process.stdout.readline() or '"died"')


def serve(rank: int, held: Mapping[str, torch.Tensor]) -> None:
    receiver = WeightReceiver(InPlaceTarget(held), rank=rank)
    for line in sys.stdin:
        method, arguments = json.loads(line)
        print(json.dumps(getattr(receiver, method)(**arguments)), flush=True)


def _zeros(described: str) -> tuple[str, torch.Tensor]:
    name, _, shape = described.rpartition(":")
    return name, torch.zeros([int(size) for size in shape.split("x")])


if __name__ == "__main__":
    torch.set_num_threads(1)
    serve(int(sys.argv[1]), dict(map(_zeros, sys.argv[2:])))
