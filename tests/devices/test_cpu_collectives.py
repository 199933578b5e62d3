"""gloo groups of one and two processes: right answers, deadlines, and wrong answers that are caught."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from omni_devices.common import collective_check
from omni_devices.cpu.collectives import GlooCollectives
from omni_devices.cpu.device import CpuDevice
from omni_portable.contracts.errors import DeviceError, LifecycleError

NAMES = ["all_gather_into_tensor", "all_reduce", "all_to_all", "barrier", "broadcast", "reduce_scatter_tensor"]
WORKER = """
import os, sys, time
from pathlib import Path
from omni_devices.cpu.device import CpuDevice
from omni_portable.contracts.errors import DeviceError

rank, folder = int(sys.argv[1]), Path(sys.argv[2])
device = CpuDevice()
os.environ.update(device.environment("actor"), OMP_NUM_THREADS="1")
import torch.distributed as dist

for stage in ("right", "missing", "late"):
    device.collectives.init_process_group(rank, 2, f"file://{folder}/{stage}", timeout_s=300)
    if stage == "right" or rank == 0:
        try:
            print(stage, sorted(device.collectives.self_test(timeout_s=60 if stage == "right" else 2)))
        except DeviceError as error:
            print(stage, error)
    elif stage == "late":
        dist.monitored_barrier()  # passes the first barrier, then does nothing
    finished = folder / f"{stage} finished"
    if rank == 0:
        finished.touch()
    while not finished.exists():
        time.sleep(0.05)
    dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def two_processes(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Output of each of two processes that go through three groups: all well, rank 1 missing, rank 1 late."""
    folder = tmp_path_factory.mktemp("group")
    runs = [
        subprocess.Popen(
            [sys.executable, "-c", WORKER, str(rank), str(folder)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    outputs = [run.communicate(timeout=300)[0] for run in runs]
    assert [run.returncode for run in runs] == [0, 0], "\n".join(outputs)
    return outputs


def test_two_processes_get_right_answers(two_processes: list[str]) -> None:
    for output in two_processes:
        assert f"right {NAMES}" in output


def test_a_missing_rank_is_named_in_time(two_processes: list[str]) -> None:
    assert "missing rank 0 of 2 waited 2 s at a barrier" in two_processes[0]
    assert re.search(r"at a barrier: .*[Rr]anks? 1", two_processes[0])


def test_a_late_collective_is_named(two_processes: list[str]) -> None:
    assert "late collective all_reduce failed on rank 0 of 2 (limit 2 s)" in two_processes[0]


@pytest.fixture
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[GlooCollectives]:
    """A group of this process."""
    for name, value in CpuDevice().environment("actor").items():
        monkeypatch.setenv(name, value)
    collectives = GlooCollectives()
    collectives.init_process_group(0, 1, f"file://{tmp_path}/store", timeout_s=60)
    yield collectives
    dist.destroy_process_group()


def test_one_process(alone: GlooCollectives) -> None:
    seconds = alone.self_test(timeout_s=30)
    assert sorted(seconds) == NAMES
    assert all(value >= 0 for value in seconds.values())
    with pytest.raises(LifecycleError, match="in a process group already"):
        alone.init_process_group(0, 1, "env://")


@pytest.mark.parametrize(
    ("function", "collective"),
    [
        ("all_reduce", "all_reduce"),
        ("broadcast", "broadcast"),
        ("all_to_all_single", "all_to_all"),
    ],
)
def test_a_wrong_answer_is_caught(
    alone: GlooCollectives, monkeypatch: pytest.MonkeyPatch, function: str, collective: str
) -> None:
    real = getattr(dist, function)

    def wrong(tensor: torch.Tensor, *args: object, **kwargs: object) -> object:
        work = real(tensor, *args, **kwargs)
        work.wait()
        tensor[3] += 1
        return work

    monkeypatch.setattr(dist, function, wrong)
    with pytest.raises(DeviceError, match=f"collective {collective} gave rank 0 of 1 a wrong result: element 3 is"):
        alone.self_test(timeout_s=30)


@pytest.mark.parametrize("flat", ["all_gather_flat", "reduce_scatter_flat"])
@pytest.mark.usefixtures("alone")
def test_flat_collectives_work_under_old_and_new_names(monkeypatch: pytest.MonkeyPatch, flat: str) -> None:
    old, new = {
        "all_gather_flat": ("all_gather_into_tensor", "all_gather_single"),
        "reduce_scatter_flat": ("reduce_scatter_tensor", "reduce_scatter_single"),
    }[flat]
    called = []
    function = getattr(collective_check, flat)
    for name, other in ((old, new), (new, old)):
        with monkeypatch.context() as patch:
            patch.setattr(dist, name, lambda out, part, async_op, name=name: called.append(name), raising=False)
            if name == old:
                patch.delattr(dist, other, raising=False)
            function(torch.zeros(2), torch.zeros(2))
    assert called == [old, new]
    result = torch.zeros(2)
    function(result, torch.tensor([1.0, 2.0]))
    assert result.tolist() == [1.0, 2.0]


@pytest.mark.parametrize(
    ("rank", "world", "method", "message"),
    [
        (2, 2, "file:///x", "rank 2 does not exist in a group of 2"),
        (-1, 2, "file:///x", "rank -1 does not exist"),
        (0, 1, "127.0.0.1:29500", r"of no known kind\n.*file://, tcp://, env://"),
    ],
)
def test_arguments_that_cannot_work(rank: int, world: int, method: str, message: str) -> None:
    with pytest.raises(DeviceError, match=message):
        GlooCollectives().init_process_group(rank, world, method)
    assert not dist.is_initialized()


def test_joining_has_a_deadline(tmp_path: Path) -> None:
    with pytest.raises(DeviceError, match="rank 0 of 2 could not join gloo at file:.* within 1 s"):
        GlooCollectives().init_process_group(0, 2, f"file://{tmp_path}/store", timeout_s=1)
    assert not dist.is_initialized()


def test_no_group_to_test() -> None:
    with pytest.raises(LifecycleError, match="call init_process_group first"):
        GlooCollectives().self_test()
