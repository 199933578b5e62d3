"""A rollout worker of tests in a process of its own: calls as JSON lines on stdin, answers on stdout.

    python -m tests.support.sync_worker RANK NAME:SIZE...

holds fp32 zeros of the given sizes.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

from omni_backends.sync import WeightReceiver
from tests.support.sync_target import DictTarget

ROOT = Path(__file__).parents[2]


class ProcessWorkers:
    """Worker processes behind an engine's call: all are asked before the first is awaited."""

    def __init__(self, count: int, sizes: dict[str, int]) -> None:
        held = [f"{name}:{size}" for name, size in sizes.items()]
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


def serve(rank: int, sizes: dict[str, int]) -> None:
    receiver = WeightReceiver(DictTarget({name: torch.zeros(size) for name, size in sizes.items()}), rank=rank)
    for line in sys.stdin:
        method, arguments = json.loads(line)
        print(json.dumps(getattr(receiver, method)(**arguments)), flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    serve(int(sys.argv[1]), {name: int(size) for name, _, size in (held.partition(":") for held in sys.argv[2:])})
