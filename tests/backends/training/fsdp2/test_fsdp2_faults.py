"""Ranks that fail, die or meet bad numbers: the driver says which and why, soon, and nobody is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import pytest
import torch

from omni_backends.training.fsdp2 import ranks
from omni_backends.training.fsdp2.failure import Failure, RankError, RankTraceback
from omni_backends.training.fsdp2.group import GoneError
from omni_backends.training.fsdp2.process import RankSpec
from omni_portable.contracts.errors import CapabilityError, ConsistencyError, DataError, LifecycleError, NonFiniteError
from tests.backends.training.fsdp2.blocks import DIE, RAISE, blocks_batch, blocks_setup
from tests.backends.training.toy import ToyAlgorithm
from tests.support.processes import assert_gone

LIMIT_S = 30.0


def poisoned(count: int, index: int, value: float):
    batch = blocks_batch(count)
    batch.trajectories[index].latents[:, 0, 0, 0] = value
    return batch


def train_for(engine, seconds: float) -> None:
    started = time.monotonic()
    while time.monotonic() - started < seconds:
        engine.train_step(blocks_batch(8), ToyAlgorithm())


def test_a_rank_that_fails_alone_stops_the_others_with_its_traceback(start):
    engine = start(blocks_setup())
    started = time.monotonic()
    with pytest.raises(RankError, match=r"rank 1 of 2 .*ArithmeticError: a sample that nobody can score") as caught:
        engine.train_step(poisoned(8, 6, RAISE), ToyAlgorithm())
    assert time.monotonic() - started < LIMIT_S
    assert "in velocity" in str(caught.value)
    assert isinstance(caught.value.__cause__, RankTraceback)
    assert_gone(engine.pids)
    with pytest.raises(LifecycleError, match="its ranks were stopped because rank 1 of 2"):
        engine.log_probs(blocks_batch(4))


def test_a_rank_that_dies_in_the_middle_of_a_step(start):
    engine = start(blocks_setup())
    started = time.monotonic()
    with pytest.raises(RankError, match=r"rank 1 of 2 \(pid \d+\) .* killed by signal 9 \(SIGKILL\) .* accumulate"):
        engine.train_step(poisoned(8, 5, DIE), ToyAlgorithm())
    assert time.monotonic() - started < LIMIT_S
    assert_gone(engine.pids)


def test_a_rank_that_was_killed_from_outside(start):
    engine = start(blocks_setup())
    engine.train_step(blocks_batch(8), ToyAlgorithm())
    victim = engine.pids[0]
    threading.Timer(0.2, os.kill, (victim, signal.SIGKILL)).start()
    with pytest.raises(RankError, match=r"rank 0 of 2 .* killed by signal 9"):
        train_for(engine, LIMIT_S)
    assert_gone(engine.pids)
    engine.close()


def test_a_rank_that_hangs_is_named_by_those_that_waited_for_it(start):
    """Stopped, it answers nothing and is not gone."""
    engine = start(blocks_setup(rank_timeout_s=10.0))
    engine.train_step(blocks_batch(8), ToyAlgorithm())
    os.kill(engine.pids[0], signal.SIGSTOP)
    started = time.monotonic()
    with pytest.raises(
        RankError, match=r"^rank 0 of 2 .* did not answer '\w+': stopped, hung or cut off\. rank 1 "
    ) as one:
        train_for(engine, LIMIT_S)
    assert time.monotonic() - started < 2 * LIMIT_S
    assert "Traceback" not in str(one.value)
    assert "actor.rank_timeout_s" in one.value.remedy
    assert isinstance(one.value.__cause__, RankTraceback)
    assert_gone(engine.pids)


class BrokenPair:
    """Two ranks: rank 0 fails because its peer has gone, which the driver sees only afterwards."""

    def __init__(self, failure: Failure) -> None:
        self._failure, self._built = failure, set[int]()
        self.pids = [1, 2]
        self.stopped = False

    def __call__(self, *_: object) -> BrokenPair:
        return self

    def describe(self, rank: int) -> str:
        return f"pid {self.pids[rank]}"

    def send(self, rank: int, message: object) -> None:
        pass

    def wait(self, ranks: Sequence[int], timeout_s: float | None) -> list[int]:
        return [min(ranks)]

    def receive(self, rank: int) -> object:
        if rank not in self._built:
            self._built.add(rank)
            return ("ready", {})
        if rank == 0:
            return self._failure
        raise GoneError("was killed by signal 9 (SIGKILL)")

    def stop(self) -> None:
        self.stopped = True


@pytest.mark.parametrize(
    ("failure", "told"),
    [
        (RuntimeError("connection reset by peer"), "failed to save: RuntimeError: connection reset by peer"),
        (RankError("no room for the answer"), "no room for the answer (rank 0 of 2 (pid 1)"),
    ],
)
def test_a_death_that_another_rank_felt_first_is_told_without_its_traceback(
    failure: Exception, told: str, monkeypatch: pytest.MonkeyPatch
):
    try:
        raise failure
    except Exception as error:  # noqa: BLE001 - as a rank answers
        pair = BrokenPair(Failure.of(error))
    monkeypatch.setattr(ranks, "Children", pair)
    driver = ranks.Ranks("fsdp2", cast("RankSpec", None), 2)
    with pytest.raises(RankError, match=r"^rank 1 of 2 \(pid 2\) .* killed by signal 9 \(SIGKILL\)") as caught:
        driver.call("save")
    assert "Before that was known, " in caught.value.problem
    assert told in caught.value.problem
    assert "Traceback" not in str(caught.value)
    assert "trainer.resume=auto" in caught.value.remedy
    assert isinstance(caught.value.__cause__, RankTraceback)  # for the run's log
    assert pair.stopped


def test_numbers_that_are_not_finite_leave_everything_as_it_was(full_pair):
    kept, steps = full_pair.weights_checksum("ema"), full_pair.optimizer_steps
    full_pair._micro_size = 2
    batch = blocks_batch(8)
    batch.advantages[5] = torch.nan
    with pytest.raises(NonFiniteError, match=r"loss of 1 sample\(s\) is not finite: r5"):
        full_pair.train_step(batch, ToyAlgorithm())
    batch = blocks_batch(8)
    batch.trajectories[3].latents[:, 0, 0, 0] = 3e38  # the loss of a saturated model is finite, its gradient is not
    with pytest.raises(NonFiniteError, match=r"gradient norm is (nan|inf) after the samples .*r3|loss of 1 .* r3"):
        full_pair.train_step(batch, ToyAlgorithm())
    assert (full_pair.weights_checksum("ema"), full_pair.optimizer_steps) == (kept, steps)
    full_pair.train_step(blocks_batch(8), ToyAlgorithm())


def test_what_can_be_refused_is_refused_before_a_rank_starts(full_pair):
    with pytest.raises(DataError, match="all 4 samples of the train batch have weight 0"):
        full_pair.train_step(blocks_batch(4, [0, 0, 0, 0]), ToyAlgorithm())
    mixed = blocks_batch(4)
    mixed.trajectories[2].schedule_fingerprint = "0" * 16
    with pytest.raises(ConsistencyError, match="carried the schedule"):
        full_pair.train_step(mixed, ToyAlgorithm())
    needy = ToyAlgorithm()
    needy.requires = type(needy.requires)(teacher=True)
    with pytest.raises(CapabilityError, match="requires teacher"):
        full_pair.train_step(blocks_batch(4), needy)
    full_pair.train_step(blocks_batch(4), ToyAlgorithm())


def test_ranks_that_cannot_start_say_why_and_end(start):
    setup = blocks_setup()
    setup.config.model.lora.rank, setup.config.model.lora.targets = 2, ["nothing_like_this"]
    with pytest.raises(Exception, match="'nothing_like_this' matches no module") as caught:
        start(setup)
    assert type(caught.value).__name__ == "ConfigError"


def test_ranks_end_when_their_driver_is_killed(tmp_path: Path):
    """A script of its own: guarded, as every script that starts processes must be."""
    script = tmp_path / "driver.py"
    script.write_text(
        "import sys, time\n"
        "from tests.backends.training.fsdp2.blocks import blocks_setup\n"
        "from omni_backends.training.fsdp2.engine import Fsdp2TrainEngine\n"
        "if __name__ == '__main__':\n"
        "    print(*Fsdp2TrainEngine(blocks_setup()).pids, flush=True)\n"
        "    time.sleep(600)\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path.cwd()), *sys.path])}
    driver = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True, env=environment)
    assert driver.stdout is not None
    pids = [int(word) for word in driver.stdout.readline().split()]
    assert len(pids) == 2
    driver.kill()
    driver.wait()
    assert_gone(pids)
