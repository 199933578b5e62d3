"""Memory checks: the CPU passes, and devices that only say that memory is gone are found out."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from omni_portable.conformance.check import Result
from omni_portable.conformance.checks.memory import CHECKS
from omni_portable.conformance.measures import sleeping
from omni_portable.conformance.measures.sleeping import Sleeper
from omni_portable.conformance.runner import run_check
from omni_portable.contracts.errors import DeviceError, LifecycleError
from omni_portable.contracts.lifecycle import Ack
from tests.conformance.conformance_doubles import Altered, context, cpu

REAL = cpu().memory
BY_ID = {check.id: check for check in CHECKS}
ACK = Ack("sleep", bytes=10**9)


def outcome(work: Path, name: str, /, **changes: Any) -> Result:
    return run_check(context(work, cpu(memory=Altered(REAL, **changes))), BY_ID[f"memory.{name}"])


@pytest.mark.parametrize("name", ["stats", "sleep-level-1", "sleep-level-2", "asleep"])
def test_the_cpu_passes(tmp_path: Path, name: str) -> None:
    found = outcome(tmp_path, name)
    assert found.status == "passed", found.reason


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"total": 0}, "total is positive"),
        ({"free": 2**60}, "free is at most total"),
        ({"used": 2**60}, "used is at most total"),
        ({"peak": 0}, "peak is at least what was used"),
    ],
)
def test_figures_that_contradict_each_other(tmp_path: Path, changes: dict[str, int], said: str) -> None:
    found = outcome(tmp_path, "stats", stats=lambda: replace(REAL.stats(), **changes))
    assert found.status == "failed"
    assert said in found.detail


def test_an_allocation_must_show(tmp_path: Path) -> None:
    frozen = REAL.stats()
    found = outcome(tmp_path, "stats", stats=lambda: frozen)
    assert "share_of_an_allocation_seen is 0" in found.reason


class LyingPool:
    """Says that everything is gone and frees nothing."""

    def register(self, *_: object) -> None: ...

    def sleep(self, *_: object) -> Ack:
        return ACK

    def wake(self, *_: object) -> Ack:
        return ACK


@pytest.mark.parametrize("name", ["sleep-level-1", "sleep-level-2"])
def test_memory_that_stays_is_found_whatever_the_acknowledgement_says(tmp_path: Path, name: str) -> None:
    found = outcome(tmp_path, name, pool=lambda _: LyingPool())
    assert found.status == "failed"
    assert "share_freed" in found.reason


def test_contents_that_survive_a_discard_are_found(tmp_path: Path) -> None:
    found = outcome(tmp_path, "sleep-level-2", pool=lambda _: LyingPool())
    assert "discarded_numbers_that_look_usable" in found.reason


def test_uses_that_are_accepted_are_named(tmp_path: Path) -> None:
    found = outcome(tmp_path, "asleep", pool=lambda _: LyingPool())
    assert found.status == "failed"
    for use in ("wake while awake", "a level that does not exist", "forward", "state_dict", "optimizer step"):
        assert use in found.detail


def test_a_restored_bit_that_is_wrong_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = Sleeper.checksums
    seen: list[int] = []

    def checksums(self: Sleeper) -> dict[str, str]:
        seen.append(1)
        if len(seen) > 1:
            with torch.no_grad():
                next(self.module.parameters())[0, 0] += 1e-3
        return real(self)

    monkeypatch.setattr(Sleeper, "checksums", checksums)
    found = outcome(tmp_path, "sleep-level-1")
    assert "tensors_that_differ is 1" in found.reason
    assert found.detail == "first different: 0.weight"


def test_what_sleeps_is_weights_buffers_and_moments() -> None:
    sleeper = Sleeper.build(cpu(), 0)
    kinds = {name.rpartition(".")[2] for name in sleeper.tensors()}
    assert {"weight", "running_mean", "exp_avg", "exp_avg_sq"} <= kinds
    least = 3 * 4 * sleeping.LAYERS * sleeping.WIDTH**2
    assert least <= sleeper.slept_bytes < least * 1.01


class Arena:
    """An engine's allocator whose memory is a list of tensors; `faulty` names what it does wrong."""

    def __init__(self, faulty: str = "") -> None:
        self.faulty, self.tags, self.now = faulty, [], ""
        self.kept: list[torch.Tensor] = []
        self.free = 0

    def check(self) -> None:
        if self.faulty == "settings":
            raise LifecycleError("expandable segments are on", remedy="turn them off")

    @contextmanager
    def use(self, tag: str) -> Iterator[None]:
        self.now = tag
        yield
        self.now = ""

    def sleep(self, level: int = 1, tags: Any = None) -> Ack:
        self.free += 0 if self.faulty == "freed" else 2 * (128 << 20)
        return Ack("sleep", bytes=2 * (128 << 20), detail="slept")

    def wake(self, tags: Any = None) -> Ack:
        if self.faulty == "bits":
            self.kept[0][0] = 9
        return Ack("wake")


@pytest.mark.parametrize(
    ("faulty", "status", "said"),
    [
        ("", "passed", ""),
        ("freed", "failed", "share_freed is 0"),
        ("bits", "failed", "weights_are_bit_equal is 0"),
        ("settings", "failed", "expandable segments are on"),
    ],
)
def test_engine_pools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, faulty: str, status: str, said: str) -> None:
    from omni_portable.conformance.checks import memory

    arena, real = Arena(faulty), memory.touched

    def touched(device: Any, size: int) -> torch.Tensor:
        arena.kept.append(real(device, size))
        return arena.kept[-1]

    monkeypatch.setattr(memory, "touched", touched)
    found = outcome(
        tmp_path, "engine-pool", engine_pool=lambda: arena, stats=lambda: replace(REAL.stats(), free=arena.free)
    )
    assert found.status == status, found.reason
    assert said in found.reason


def test_without_an_engine_pool_nothing_is_run(tmp_path: Path) -> None:
    def none() -> Any:
        raise DeviceError("the host has no engine allocator")

    found = outcome(tmp_path, "engine-pool", engine_pool=none)
    assert (found.status, found.reason) == ("not_run", "no engine pool: the host has no engine allocator")
