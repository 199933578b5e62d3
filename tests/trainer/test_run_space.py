"""How many checkpoints a run must find room for."""

from __future__ import annotations

from pathlib import Path

import pytest

from omni_portable.config.schema import TrainerConfig
from omni_portable.trainer.run import checkpoints_to_come


@pytest.mark.parametrize(
    ("keep", "interval", "total", "step", "there", "expected"),
    [
        (1, 10, 100, 0, (), 2),
        (3, 10, 100, 0, (), 4),
        (3, 10, 20, 0, (), 2),
        (3, 0, 100, 0, (), 1),
        (3, 1, 100, 50, (48, 49, 50), 1),
        (3, 1, 100, 50, (49, 50), 2),
        (3, 1, 100, 48, (48, 49, 50), 3),
        (0, 10, 95, 0, (), 10),
        (0, 10, 100, 50, (10, 20, 30, 40, 50), 5),
        (0, 1, 10**9, 0, (), 10**9),
        (2, 10, 100, 100, (90, 100), 0),
    ],
)
def test_checkpoints_to_come(
    tmp_path: Path, keep: int, interval: int, total: int, step: int, there: tuple[int, ...], expected: int
) -> None:
    for number in there:
        (tmp_path / "checkpoints" / f"step_{number:06d}").mkdir(parents=True)
    trainer = TrainerConfig(total_steps=total, save_interval=interval, keep_checkpoints=keep)
    assert checkpoints_to_come(tmp_path, trainer, step) == expected
