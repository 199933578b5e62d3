"""What is particular to TransferQueue: bounds, other processes, processes that die."""

from __future__ import annotations

import asyncio
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import torch

ray = pytest.importorskip("ray")
pytest.importorskip("transfer_queue")

from omni_backends.dataplane.transferqueue.plane import TransferQueuePlane  # noqa: E402
from omni_backends.dataplane.transferqueue.rows import PARTITION  # noqa: E402
from omni_backends.launch.ray.cluster import _listening, is_loopback  # noqa: E402
from omni_portable.contracts.dataplane import DataPlaneFullError  # noqa: E402
from omni_portable.contracts.errors import ClusterError, DataError  # noqa: E402
from omni_portable.rollout.replay_buffer import ReplayBuffer  # noqa: E402
from tests.support.planes import heavy_group, queue_options  # noqa: E402
from tests.support.requests import make_group  # noqa: E402

pytestmark = pytest.mark.ray
MIB = 1 << 20


def test_its_processes_listen_on_loopback_only(queue):
    heard = [(name, ip) for _, name, ip, _ in _listening()]
    assert sum("TransferQueueController" in name for name, _ in heard) >= 2
    assert all(is_loopback(ip) for _, ip in heard)


def test_a_number_of_groups_is_all_there_is_room_for(attach):
    plane = attach(capacity_groups=2)
    for name in "ab":
        plane.put(make_group(name, 0, [0]))
    with pytest.raises(DataPlaneFullError, match="no room for the group 'c'(.|\n)*2 of 2 groups"):
        plane.put(make_group("c", 0, [0]))
    plane.take(["a"])
    plane.put(make_group("c", 0, [0]))
    assert [tag.group_id for tag in plane.tags()] == ["b", "c"]


def test_so_are_their_bytes(attach):
    plane = attach(capacity_mib=4)
    plane.put(heavy_group("a", 3 * MIB))
    with pytest.raises(DataPlaneFullError) as full:
        plane.put(heavy_group("b", 2 * MIB))
    assert 2 * MIB < full.value.size < 2 * MIB + 8192
    with pytest.raises(DataError, match="more than may be stored altogether"):
        plane.put(heavy_group("c", 5 * MIB))
    plane.put(heavy_group("small", MIB // 2))


def test_a_view_is_stored_without_the_rest_of_its_storage(attach):
    plane = attach(capacity_mib=1)
    group = make_group("view", 0, [0])
    group.trajectories = [replace(group.trajectories[0], final_latents=torch.arange(4.0 * MIB).view(MIB, 4)[7])]
    plane.put(group)
    assert plane.take(["view"])[0].trajectories[0].final_latents.tolist() == [28.0, 29.0, 30.0, 31.0]


def test_who_waits_for_room_gets_it_when_another_process_takes(attach):
    """The other plane stands for another process: the two know of each other through the queue alone."""
    plane, other = attach(capacity_groups=1), attach()
    plane.put(make_group("a", 0, [0]))

    async def wait() -> None:
        waiting = asyncio.create_task(plane.room())
        for _ in range(3):
            await asyncio.sleep(0)
        assert not waiting.done()
        await asyncio.to_thread(other.take, ["a"])
        await asyncio.wait_for(waiting, 120)

    asyncio.run(wait())
    plane.put(make_group("b", 0, [0]))


def test_room_that_nobody_makes_is_an_error(attach):
    plane = attach(capacity_groups=1, room_timeout_s=0.01)
    plane.put(make_group("a", 0, [0]))
    with pytest.raises(DataError, match="nobody took anything out for 0.01 seconds"):
        asyncio.run(plane.room())


def test_an_id_that_another_process_stored_is_refused(attach):
    plane, other = attach(), attach()
    other.put(make_group("a", 4, [0]))
    with pytest.raises(DataError, match="holds a group 'a' already"):
        plane.put(make_group("a", 5, [0]))
    assert plane.tags()[0].submission == 4
    assert plane.take(["a"])[0].submission == 4


def test_rows_that_somebody_began_to_remove_are_removed_and_the_others_stay(attach):
    plane = attach()
    for name in "ab":
        plane.put(make_group(name, 0, [0]))
    client = plane._rows._client

    async def begin() -> None:
        meta = await client.async_kv_retrieve_meta(["a"], PARTITION)
        await client._mark_clearing_in_controller(meta)

    asyncio.run_coroutine_threadsafe(begin(), plane._rows._loop).result(60)
    assert [tag.group_id for tag in attach().tags()] == ["b"]


def test_a_call_that_is_under_way_when_the_queue_is_left_ends_with_an_error(attach, monkeypatch):
    plane, begun = attach(answer_timeout_s=1e6), threading.Event()

    async def never(*arguments):
        begun.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(plane._rows._client, "async_kv_list", never)
    with ThreadPoolExecutor(1) as thread:
        call = thread.submit(plane.tags)
        assert begun.wait(60)
        plane._rows.close()
        with pytest.raises(ClusterError, match="'tests' was left by this process before it answered"):
            call.result(60)
    with pytest.raises(ClusterError, match="was left"):
        plane.tags()


def ended(plane: TransferQueuePlane) -> None:
    """Wait until the controller's process is gone; Ray calls the actor dead a moment before its servers are closed."""
    controller = plane._service.settings.controller.zmq_info
    for port in controller.ports.values():
        while True:
            try:
                socket.create_connection((controller.ip, port), timeout=120).close()
            except ConnectionError:
                break
            time.sleep(0.1)


DYING = """
import os, signal, sys
from omni_backends.dataplane.transferqueue.plane import TransferQueuePlane
from tests.support.planes import media_group, queue_options
plane = TransferQueuePlane(queue_options(queue="left", storage_units=1, address=sys.argv[1]))
plane.drop([])
print("mine", flush=True)
sys.stdin.readline()
for number in range(2):
    plane.put(media_group(f"g{number}", number))
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_groups_outlive_the_process_that_started_the_queue_and_put_them(cluster, monkeypatch):
    """As long as it lives, nobody else takes anything out, or ends the queue."""
    argv = [sys.executable, "-c", DYING, cluster.address]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as dying:
        assert dying.stdin is not None
        assert dying.stdout is not None
        assert "mine" in dying.stdout.read(5)
        with monkeypatch.context() as impatient:
            impatient.setattr(TransferQueuePlane._claim, "__defaults__", (0.0,))
            plane = TransferQueuePlane(queue_options(queue="left"))
            for call in (plane.drop, plane.take):
                with pytest.raises(ClusterError, match=f"'left' is in use by another run .process {dying.pid} on"):
                    call([])
            plane.close()
        dying.stdin.write("go on\n")
        dying.stdin.flush()
        assert dying.wait(500) == -signal.SIGKILL
    plane = TransferQueuePlane(queue_options(queue="left", answer_timeout_s=5.0))
    buffer = ReplayBuffer(plane, max_staleness=0)
    assert buffer.available(3) == 2
    with pytest.raises(DataError, match="'g0' was added"):
        buffer.add(make_group("g0", 0, [3]))
    plane.close()
    plane = TransferQueuePlane(queue_options(queue="left", answer_timeout_s=5.0))
    buffer = ReplayBuffer(plane, max_staleness=0)
    assert [group.group_id for group in buffer.sample(2, 3)] == ["g0", "g1"]
    plane.close()
    ended(plane)
    plane.close()


def test_a_queue_that_is_gone_is_an_error_and_not_a_hang(cluster):
    plane = TransferQueuePlane(queue_options(queue="", storage_units=1, answer_timeout_s=5.0))
    plane.put(make_group("a", 0, [0]))
    plane._service.stop()
    ended(plane)
    with pytest.raises(ClusterError, match="did not answer within 5 seconds"):
        plane.tags()
    with pytest.raises(ClusterError):
        plane.take(["a"])
    plane.close()
