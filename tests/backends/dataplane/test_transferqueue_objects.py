"""Large columns of rows wait in Ray's object store: who owns them, when they go, what happens without room."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import pytest
import torch

ray = pytest.importorskip("ray")
pytest.importorskip("transfer_queue")

from omni_backends.dataplane.transferqueue.objects import Objects  # noqa: E402
from omni_backends.dataplane.transferqueue.plane import TransferQueuePlane  # noqa: E402
from omni_backends.dataplane.transferqueue.rows import AT_ONCE, HERE, HERE_AT_ONCE, SIZE, together  # noqa: E402
from omni_portable.contracts.errors import ClusterError, ConfigError, DataError  # noqa: E402
from omni_portable.rollout.replay_buffer import ReplayBuffer  # noqa: E402
from tests.support.planes import heavy_group, queue_options  # noqa: E402

pytestmark = pytest.mark.ray
MIB = 1 << 20


def entries(plane: TransferQueuePlane) -> list[str]:
    """Keys of which the queue's keepers own something."""
    held = ray.get([keeper.keys.remote() for keeper in plane._service.keepers])
    return sorted(key for keys in held for key in keys)


def test_transferqueue_itself_holds_labels_of_large_groups_and_small_groups_whole(attach):
    plane = attach()
    plane.put(heavy_group("large", MIB))
    plane.put(heavy_group("small", 4))
    tags = plane._rows.tags()
    assert tags["large"][SIZE] > MIB > 8192 > tags["large"][HERE]
    assert tags["small"][SIZE] == tags["small"][HERE]
    assert entries(plane) == ["large"]


@pytest.mark.parametrize("method", ["take", "drop"])
def test_objects_go_with_their_rows(attach, method):
    plane = attach()
    for name in "abc":
        plane.put(heavy_group(name, MIB))
    getattr(plane, method)(["a", "c"])
    assert entries(plane) == ["b"]
    assert plane.take(["b"])[0].trajectories[0].final_latents.numel() == MIB // 4
    assert entries(plane) == []


def test_a_refused_group_leaves_no_object(attach):
    plane, other = attach(), attach()
    other.put(heavy_group("a", MIB))
    with pytest.raises(DataError, match="holds a group 'a' already"):
        plane.put(heavy_group("a", 2 * MIB))
    assert plane.take(["a"])[0].trajectories[0].final_latents.numel() == MIB // 4
    assert entries(plane) == []


def test_a_row_that_fails_leaves_no_object_and_its_id_may_be_used_again(attach, monkeypatch):
    plane = attach()
    with monkeypatch.context() as broken:
        broken.setattr(type(plane._rows._client), "async_set_custom_meta", None)
        with pytest.raises(TypeError):
            plane.put(heavy_group("a", MIB))
    assert entries(plane) == [] == plane.tags()
    plane.put(heavy_group("a", MIB))
    assert [tag.group_id for tag in plane.tags()] == ["a"]


def test_an_object_whose_writer_died_before_its_row_was_there_is_freed_once_it_is_overdue(attach):
    plane = attach()
    parts = [torch.zeros(MIB, dtype=torch.uint8)]
    for queue, patience in (("overdue", 0.0), ("coming", 600.0)):
        writer = Objects("tests", plane._service.keepers, patience)
        ray.get(writer.hand_over(queue, {"train": parts}).kept)
    plane.put(heavy_group("row", MIB))
    assert entries(attach()) == ["coming", "row"]
    plane._objects.forget(["coming"])


def test_without_objects_all_of_a_group_is_in_the_storage_processes(attach):
    plane = attach(objects_from_kib=0)
    plane.put(heavy_group("a", MIB))
    tag = plane._rows.tags()["a"]
    assert tag[SIZE] == tag[HERE] > MIB
    assert entries(plane) == []
    assert attach().take(["a"])[0].trajectories[0].final_latents.numel() == MIB // 4


def test_rows_are_read_together_up_to_a_number_of_bytes():
    def tags(*sizes):
        return [{SIZE: size, HERE: here} for size, here in sizes]

    assert together(tags(*[(MIB, 300)] * 3)) == [[0, 1, 2]]
    assert together(tags((AT_ONCE, 300), (1, 1), (AT_ONCE * 2, 300))) == [[0], [1], [2]]
    assert together(tags((HERE_AT_ONCE, HERE_AT_ONCE), (1, 1), (1, 1))) == [[0], [1, 2]]


LEFT = """
import os, signal, sys
from omni_backends.dataplane.transferqueue.plane import TransferQueuePlane
from tests.support.planes import heavy_group, queue_options
plane = TransferQueuePlane(queue_options(queue="heavy", storage_units=1, address=sys.argv[1]))
plane.put(heavy_group("g", 2 << 20))
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_large_groups_outlive_their_writer_and_a_lost_keeper_is_an_error(cluster):
    dying = subprocess.run([sys.executable, "-c", LEFT, cluster.address], env=dict(os.environ), timeout=500)
    assert dying.returncode == -signal.SIGKILL
    plane = TransferQueuePlane(queue_options(queue="heavy", answer_timeout_s=60.0))
    (group,) = ReplayBuffer(plane, max_staleness=0).sample(1, 0)
    assert group.trajectories[0].final_latents.equal(torch.zeros(MIB // 2))
    plane.put(heavy_group("h", MIB))
    plane.put(heavy_group("small", 4))
    for keeper in plane._service.keepers:
        ray.kill(keeper)
    with pytest.raises(ClusterError, match="objects of the queue 'heavy' are lost(.|\n)*--resume"):
        plane.take(["h"])
    with pytest.raises(ClusterError, match="objects of the queue 'heavy' are lost"):
        plane.put(heavy_group("i", MIB))
    plane._service.stop()
    plane._rows.close()


def test_a_queue_without_objects_is_not_joined_by_who_asks_for_them(cluster):
    plane = TransferQueuePlane(queue_options(queue="plain", storage_units=1, objects_from_kib=0))
    assert plane._service.keepers == ()
    with pytest.raises(ConfigError, match="'plain' was started without objects"):
        TransferQueuePlane(queue_options(queue="plain"))
    plane.put(heavy_group("a", MIB))
    assert len(plane.take(["a"])) == 1
    plane.close()


FULL = """
import json, os, secrets
import ray
from omni_backends.dataplane.transferqueue import TransferQueueOptions
from omni_backends.dataplane.transferqueue.plane import TransferQueuePlane
from omni_backends.launch.ray.cluster import _loopback
from omni_portable.contracts.dataplane import DataPlaneFullError
from omni_portable.contracts.errors import DataError
from omni_portable.rollout.replay_buffer import ReplayBuffer
from tests.support.planes import heavy_group

os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
with _loopback():
    ray.init(address="local", num_cpus=1, include_dashboard=False, log_to_driver=False, configure_logging=False,
             object_store_memory=80 << 20, _system_config={"local_fs_capacity_threshold": 1e-6})
plane = TransferQueuePlane(TransferQueueOptions(storage_units=1, capacity_mib=1024, room_timeout_s=0.1))
said = {}
try:
    for number in range(9):
        plane.put(heavy_group(f"g{number}", 16 << 20))
except DataPlaneFullError as error:
    said["full"] = str(error)
stored = [tag.group_id for tag in plane.tags()]
said["stored"] = len(stored)
import asyncio
try:
    asyncio.run(plane.room(16 << 20))
except DataError as error:
    said["no room"] = str(error)
plane.drop(stored)
asyncio.run(plane.room(16 << 20))
buffer = ReplayBuffer(plane, max_staleness=0)
through = 0
while through < 12:
    asyncio.run(buffer.store(heavy_group(f"h{through}", 16 << 20)))
    through += len(buffer.sample(1, 0))
said["through"] = through
try:
    plane.put(heavy_group("huge", 90 << 20))
except (DataError, DataPlaneFullError) as error:
    said["huge"] = str(error)
plane.close()
ray.shutdown()
print(json.dumps(said))
"""


def test_an_object_store_that_is_full_is_back_pressure_and_what_is_taken_makes_room():
    """A cluster with 80 MiB of shared memory and a disk that counts as full."""
    done = subprocess.run(
        [sys.executable, "-c", FULL], env=dict(os.environ), timeout=500, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-2000:]
    said = json.loads(done.stdout.splitlines()[-1])
    assert "object store has no room for the group 'g" in said["full"]
    assert 1 <= said["stored"] <= 4
    assert "nobody took anything out" in said["no room"]
    assert said["through"] == 12, "more than twice what there is room for at a time"
    assert "no room for the group 'huge' of 90.0 MiB" in said["huge"]
