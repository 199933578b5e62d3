"""The logger seam: where metrics go."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol, runtime_checkable


@runtime_checkable
class MetricLogger(Protocol):
    """Constructed as ``Logger(options, run_dir, resumed_from)``; `resumed_from` is the last completed step on resume,
    so that later rows an interrupted run wrote are dropped."""

    def log(self, step: int, metrics: Mapping[str, float]) -> None: ...

    def log_image(self, step: int, name: str, path: Path) -> None: ...

    def close(self) -> None: ...
