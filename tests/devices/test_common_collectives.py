"""Groups of one and two real processes: right answers, deadlines, missing ranks, wrong answers; and binding."""

from __future__ import annotations

import math
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import torch
import torch.distributed as dist

from omni_devices.common import collective_check, rendezvous
from omni_devices.common.collectives import DistCollectives
from omni_devices.cpu.device import CpuDevice
from omni_portable.contracts.errors import DeviceError, LifecycleError

NAMES = [
    *("all_gather_into_tensor", "all_reduce", "all_to_all", "barrier", "barrier_timeout", "broadcast"),
    "reduce_scatter_tensor",
]
WORKER = """
import os, sys, time
from pathlib import Path
from omni_devices.cpu.device import CpuDevice
from omni_portable.contracts.errors import DeviceError

rank, folder = int(sys.argv[1]), Path(sys.argv[2])
device = CpuDevice()
os.environ.update(device.environment("actor"), OMP_NUM_THREADS="1")
import torch.distributed as dist
from torch.distributed.distributed_c10d import _get_default_store
from omni_devices.common.rendezvous import meet

def wrong(tensor, whole, async_op):
    work = all_to_all(tensor, whole, async_op=async_op)
    work.wait()
    tensor[7] -= 1
    return work

all_to_all = dist.all_to_all_single  # the last one that is tested, so that nobody waits for rank 1 afterwards
for stage in ("right", "again", "wrong", "missing", "late"):
    if stage != "again":
        device.collectives.init_process_group(rank, 2, f"file://{folder}/{stage}", timeout_s=300)
    dist.all_to_all_single = wrong if (stage, rank) == ("wrong", 1) else all_to_all
    if stage in ("right", "again", "wrong") or rank == 0:
        try:
            print(stage, sorted(device.collectives.self_test(timeout_s=1 if stage in ("missing", "late") else 60)))
        except DeviceError as error:
            print(stage, error)
    elif stage == "late":  # passes the barrier, then does nothing
        meet(_get_default_store(), "barrier", rank, range(2), 60)
        dist.barrier()
    finished = folder / f"{stage} finished"
    if rank == 0:
        finished.touch()
    while not finished.exists():
        time.sleep(0.05)
    if stage != "right":
        dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def two_processes(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Output of each of two processes: all well, all well again, rank 1 computes wrongly, is missing, is late."""
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
        assert f"again {NAMES}" in output


def test_a_wrong_result_is_caught_where_it_is(two_processes: list[str]) -> None:
    assert (
        "wrong collective all_to_all gave rank 1 of 2 a wrong result: element 7 is 7216.0, not 7217.0"
        in (two_processes[1])
    )
    assert f"wrong {NAMES}" in two_processes[0]


def test_a_missing_rank_is_named_in_time(two_processes: list[str]) -> None:
    assert "missing rank 0 of 2 waited 1 s at a barrier: rank 1 did not come" in two_processes[0]


def test_a_late_collective_is_named(two_processes: list[str]) -> None:
    assert "late collective all_reduce failed on rank 0 of 2 (limit 1 s): " in two_processes[0]


def gloo() -> DistCollectives:
    return DistCollectives("gloo", "cpu", ("shared_memory",), "GLOO_SOCKET_IFNAME")


@pytest.fixture
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[DistCollectives]:
    """A group of this process."""
    for name, value in CpuDevice().environment("actor").items():
        monkeypatch.setenv(name, value)
    collectives = gloo()
    collectives.init_process_group(0, 1, f"file://{tmp_path}/store", timeout_s=60)
    yield collectives
    dist.destroy_process_group()


def test_one_process(alone: DistCollectives) -> None:
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
    alone: DistCollectives, monkeypatch: pytest.MonkeyPatch, function: str, collective: str
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


class Work:
    """A collective of an accelerator: `wait` returns at once, done or not."""

    def __init__(self, polls: int) -> None:
        self.polls = polls

    def is_completed(self) -> bool:
        self.polls -= 1
        return self.polls < 0

    def wait(self, timeout: object) -> None:
        if self.polls >= 0:
            raise AssertionError("waited for work that is not done")


def test_work_of_an_accelerator_is_asked_whether_it_is_done() -> None:
    device = torch.device("meta")
    collective_check.finish(Work(3), 60, device)
    with pytest.raises(RuntimeError, match="not done in time"):
        collective_check.finish(Work(10**9), 0.05, device)


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
        gloo().init_process_group(rank, world, method)
    assert not dist.is_initialized()


JOIN = r"rank 0 of 2 could not join gloo at file:.* within 1 s: rank 1 did not come\n.*set GLOO_SOCKET_IFNAME"


def test_joining_has_a_deadline(tmp_path: Path) -> None:
    with pytest.raises(DeviceError, match=JOIN):
        gloo().init_process_group(0, 2, f"file://{tmp_path}/store", timeout_s=1)
    assert not dist.is_initialized()


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ("gone/store", "the folder .*gone does not exist"),
        ("foreign", "foreign exists and is no store\n.*no earlier job has left behind"),
        ("folder", "Is a directory"),
    ],
)
def test_a_file_that_can_be_no_store_is_not_waited_for(tmp_path: Path, place: str, message: str) -> None:
    (tmp_path / "foreign").write_text("a log, a picture or another file\n")
    (tmp_path / "folder").mkdir()
    with pytest.raises(DeviceError, match=message):
        gloo().init_process_group(0, 1, f"file://{tmp_path}/{place}", timeout_s=1)
    assert not dist.is_initialized()


def test_a_store_that_another_rank_has_begun_is_joined(tmp_path: Path) -> None:
    (tmp_path / "begun").touch()
    begun = dist.FileStore(str(tmp_path / "written"), 2)
    for name in ("begun", "written"):
        store = rendezvous.open_store(f"file://{tmp_path}/{name}", 0, 2, 30)
        store.set("key", "value")
        assert store.get("key") == b"value"
    assert begun.get("key") == b"value"


def test_a_server_that_never_answers_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rendezvous, "_GRACE_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as server:
        method = f"tcp://127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(DeviceError, match="what listens there does not answer as a store does"):
            gloo().init_process_group(1, 2, method, timeout_s=0.3)
    assert not dist.is_initialized()


def test_a_store_listens_at_the_named_address_only() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(OSError, match="in use"):
            rendezvous.open_store(f"tcp://127.0.0.1:{port}", 0, 2, 10)
    method = f"tcp://127.0.0.1:{port}"
    first, second = (rendezvous.open_store(method, rank, 2, 10) for rank in (0, 1))
    first.set("key", "value")
    assert second.get("key") == b"value"
    found = [one.laddr for one in psutil.Process().net_connections("tcp") if one.status == psutil.CONN_LISTEN]
    assert {address.ip for address in found if address.port == port} == {"127.0.0.1"}
    with pytest.raises(ValueError, match="names no host and port"):
        rendezvous.open_store("tcp://127.0.0.1", 0, 2, 10)


@pytest.mark.parametrize("limit", [0.0, -1.0, math.nan, math.inf, 1e12])
def test_limits_that_no_clock_can_hold_are_refused(tmp_path: Path, limit: float) -> None:
    with pytest.raises(DeviceError, match="cannot be waited for"):
        gloo().init_process_group(0, 1, f"file://{tmp_path}/store", timeout_s=limit)
    with pytest.raises(DeviceError, match="cannot be waited for"):
        gloo().self_test(timeout_s=limit)


def test_no_group_to_test() -> None:
    with pytest.raises(LifecycleError, match="call init_process_group first"):
        gloo().self_test()


class Module:
    """An accelerator's module of torch, with some devices visible."""

    def __init__(self, count: int, current: int = 0) -> None:
        self.count, self.current = count, current

    def device_count(self) -> int:
        return self.count

    def current_device(self) -> int:
        return self.current

    def set_device(self, index: int) -> None:
        self.current = index


@pytest.mark.parametrize(
    ("count", "current", "local", "index"), [(8, 0, "3", 3), (8, 2, None, 2), (1, 0, "3", 0), (8, 5, "", 5)]
)
def test_a_rank_is_bound_to_one_device(
    monkeypatch: pytest.MonkeyPatch, count: int, current: int, local: str | None, index: int
) -> None:
    module, joined = Module(count, current), []
    monkeypatch.setattr(torch, "get_device_module", lambda device: module)
    monkeypatch.setattr(DistCollectives, "_join", lambda self, *args: joined.append(args))
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    if local is not None:
        monkeypatch.setenv("LOCAL_RANK", local)
    DistCollectives("xccl", "xpu", (), "X_IFNAME").init_process_group(3, 8, "env://")
    assert joined == [(3, 8, "env://", 600.0, torch.device("xpu", index))]
    assert module.current == index


def test_a_rank_without_a_device_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_device_module", lambda device: Module(2))
    monkeypatch.setenv("LOCAL_RANK", "2")
    with pytest.raises(DeviceError, match="local rank 2 .*, but 2 devices are visible"):
        DistCollectives("xccl", "xpu", (), "X_IFNAME").init_process_group(2, 3, "env://")


@pytest.mark.parametrize("local", ["first", "-1", "1.5"])
def test_a_local_rank_that_is_no_number_is_refused(monkeypatch: pytest.MonkeyPatch, local: str) -> None:
    monkeypatch.setattr(torch, "get_device_module", lambda device: Module(2))
    monkeypatch.setenv("LOCAL_RANK", local)
    with pytest.raises(DeviceError, match=f"LOCAL_RANK is '{local}', not the number of a rank"):
        DistCollectives("xccl", "xpu", (), "X_IFNAME").init_process_group(0, 2, "env://")


@pytest.mark.parametrize(
    ("hint", "says"), [("X_IFNAME", "set X_IFNAME to the network"), ("open port 9 of the switch", "open port 9 of the")]
)
def test_a_backend_that_fails_to_start_is_reported_with_advice(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, hint: str, says: str
) -> None:
    def fails(*args: object, **kwargs: object) -> None:
        raise RuntimeError("unhandled system error")

    monkeypatch.setattr(torch, "get_device_module", lambda device: Module(1))
    monkeypatch.setattr(dist, "init_process_group", fails)
    with pytest.raises(DeviceError, match=f"could not join xccl .*: unhandled system error\n.*{says}.*LOCAL_RANK"):
        DistCollectives("xccl", "xpu", (), hint).init_process_group(0, 1, f"file://{tmp_path}/store")


def test_meetings_are_counted_and_the_missing_are_named() -> None:
    store = dist.HashStore()
    assert rendezvous.meet(store, "x", 0, [0], 1) == []
    assert rendezvous.meet(store, "x", 1, [0, 1], 1) == []
    assert rendezvous.meet(store, "x", 1, [0, 1, 2], 0.05) == [0, 2]  # the second time only rank 1 came
    assert rendezvous.meet(store, "y", 0, [0], 1) == []
    assert rendezvous.named([1]) == "rank 1"
    assert rendezvous.named([1, 2]) == "ranks 1, 2"
    assert rendezvous.named(range(20)).endswith("14, 15 and 4 more")


def test_a_store_with_keys_of_another_job_is_noticed(alone: DistCollectives) -> None:
    from torch.distributed.distributed_c10d import _get_default_store

    rendezvous.meet(_get_default_store(), "barrier_timeout", 1, [1], 1)
    with pytest.raises(DeviceError, match="did not miss rank 1 of a group of 1"):
        alone.self_test(timeout_s=30)
