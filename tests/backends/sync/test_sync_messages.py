"""Workers read messages and segments with suspicion: what does not fit is refused and leaves them as they were."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch

from omni_backends.sync import ReceiverExtension, WeightReceiver
from omni_backends.sync.segment import attach_segment, create_segment
from omni_backends.sync.wire import Announcement, Bucket, Piece, decode_announcement, decode_bucket
from omni_portable.contracts.errors import ConfigError, WeightSyncError
from omni_portable.models.weights import make_stream
from tests.support.sync_target import DictTarget, named_shared_memory

VALUES = torch.arange(64.0)
STREAM = make_stream("full", [("a", VALUES)], None)


def begun(**changes: Any) -> tuple[WeightReceiver, Any, Any]:
    """A receiver with an open sync, and the segment it reads."""
    receiver = WeightReceiver(DictTarget({"a": torch.zeros(64)}))
    segment = create_segment(4096)
    segment.memory[:256].copy_(VALUES.view(torch.uint8))
    announced = Announcement("s1", os.getpid(), segment.describe(), STREAM.manifest)
    return receiver, segment, receiver.weights_begin({**announced.encode(), **changes}, 1)


def header(*pieces: list[Any]) -> dict[str, Any]:
    return {"sync": "s1", "index": 0, "pieces": list(pieces)}


def test_messages_come_back_as_they_went() -> None:
    announced = Announcement("s1", 7, {"kind": "x"}, STREAM.manifest)
    assert decode_announcement(announced.encode()) == announced
    bucket = Bucket("s1", 3, (Piece("a", 0, 256, 64),))
    assert decode_bucket(bucket.encode()) == bucket


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"mode": "half"}, "cannot be read"),
        ({"tensors": [1]}, "cannot be read"),
        ({"tensors": {"a": [[-1], "float32", ""]}}, "cannot be read"),
        ({"tensors": {"a" * 2000: [[1], "float32", ""]}}, "at most 1024 characters"),
        ({"tensors": {"a": [[1], "object", ""]}}, "dtype object"),
        ({"channel": {"kind": "file", "path": "/etc/passwd"}}, "a channel of kind 'file'"),
        ({"channel": {"kind": "shared_memory"}}, "KeyError"),
    ],
)
def test_an_announcement_that_does_not_fit_is_refused(changes: dict[str, Any], problem: str) -> None:
    _, _, answer = begun(**changes)
    assert not answer["ok"]
    assert problem in answer["error"]


@pytest.mark.parametrize(
    ("message", "problem"),
    [
        (header(["b", 0, 256, 0]), "delivered 'b', which it did not announce"),
        (header(["a", 0, 256, 4032]), "bytes 4032 to 4288 of a channel of 4096 bytes"),
        (header(["a", 0, 256, 3]), "bytes 3 to 259"),
        (header(["a", 0, 512, 0]), "was sent bytes 0 to 512 of 256"),
        (header(["a", 64, 64, 0]), "expected were those from 0"),
        (header(["a", 0, 128, 0], ["a", 0, 128, 0]), "two pieces of one tensor"),
        (header(["a", 0, -1, 0]), "cannot be read"),
        (header(["a", 0]), "cannot be read"),
        (header(["a", 0, 256, 64]), "'a' arrived with checksum"),
    ],
)
def test_a_bucket_that_does_not_fit_ends_the_sync(message: dict[str, Any], problem: str) -> None:
    receiver, _segment, answer = begun()
    assert answer["ok"]
    found = receiver.weights_bucket(message)
    assert not found["ok"]
    assert problem in found["error"]
    assert "no weight update 's1' is under way" in receiver.weights_commit("s1")["error"]
    assert receiver.version == 0


def test_calls_of_another_sync_leave_the_present_one_alone() -> None:
    receiver, _segment, _ = begun()
    for answer in (receiver.weights_commit("s2"), receiver.weights_finish("s2")):
        assert "no weight update 's2' is under way here" in answer["error"]
    assert receiver.weights_discard("s2")["ok"]
    assert receiver.weights_bucket(header(["a", 0, 256, 0]))["ok"]
    assert "before it was applied" in receiver.weights_finish("s1")["error"]


def test_commit_before_the_last_tensor_is_refused() -> None:
    receiver, _segment, _ = begun()
    assert receiver.weights_bucket(header(["a", 0, 128, 0]))["ok"]
    assert "ended without 1 of 1 tensors, first 'a'" in receiver.weights_commit("s1")["error"]


def test_a_sender_that_died_does_not_block_the_next() -> None:
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    receiver, segment, answer = begun(sender=pid)
    assert answer["ok"]
    announced = Announcement("s2", os.getpid(), segment.describe(), STREAM.manifest)
    assert receiver.weights_begin(announced.encode(), 1)["ok"]


def test_segments_have_no_name_and_are_known_by_identity() -> None:
    listed = named_shared_memory()
    with create_segment(8192) as segment:
        place = segment.describe()
        assert named_shared_memory() <= listed
        with attach_segment(place) as seen:
            segment.memory[5] = 77
            assert seen.memory[5] == 77
        with pytest.raises(WeightSyncError, match="no longer holds the shared memory"):
            attach_segment({**place, "inode": 1})
    with pytest.raises(WeightSyncError, match=r"no longer holds|cannot be opened"):
        attach_segment(place)
    with pytest.raises(WeightSyncError, match="one machine, in one container, as one user"):
        attach_segment({**place, "process": 2**22 + 1})


def test_too_little_shared_memory_is_said_with_sizes() -> None:
    with pytest.raises(
        WeightSyncError, match=r"needs 1073741824.0 MiB in /dev/shm, which has [0-9.]+ MiB free"
    ) as caught:
        create_segment(1 << 50)
    assert "--shm-size" in caught.value.remedy


def test_a_folder_without_unnamed_files_is_refused(tmp_path: Path) -> None:
    with pytest.raises(WeightSyncError, match="cannot make an unnamed file"):
        create_segment(4096, tmp_path / "absent")


def test_a_full_file_system_is_noticed_when_reserving(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(WeightSyncError, match="needs 0.0 MiB"):
        create_segment(4096)


def test_extension_makes_one_receiver_at_the_first_call() -> None:
    class Worker(ReceiverExtension):
        made = 0

        def make_weight_receiver(self) -> WeightReceiver:
            self.made += 1
            return WeightReceiver(DictTarget({"a": torch.zeros(64)}))

    worker = Worker()
    segment = create_segment(4096)
    segment.memory[:256].copy_(VALUES.view(torch.uint8))
    announced = Announcement("s1", os.getpid(), segment.describe(), STREAM.manifest)
    for answer in (
        worker.weights_begin(announced.encode(), 1),
        worker.weights_bucket(header(["a", 0, 256, 0])),
        worker.weights_commit("s1"),
        worker.weights_finish("s1"),
    ):
        assert answer["ok"], answer
    assert worker.weights_checksum()["checksums"] == {"a": STREAM.manifest.tensors["a"].checksum}
    assert worker.weights_checksum(["b"])["error"] == "KeyError: 'b'"
    assert worker.weights_discard("s1")["version"] == 1
    assert worker.made == 1
    with pytest.raises(NotImplementedError, match="ReceiverExtension must make"):
        ReceiverExtension().weights_checksum()


def test_channels_that_need_other_hardware_are_refused() -> None:
    from omni_backends.sync.broadcast import BroadcastReceiver, BroadcastSender
    from omni_backends.sync.ipc import IpcSender

    with pytest.raises(ConfigError, match="'ipc' shares memory of an accelerator, not of 'cpu'"):
        IpcSender(4096, torch.device("cpu"))
    with pytest.raises(ConfigError, match="backend 'mpi'"):
        BroadcastSender(1, 4096, backend="mpi")
    with pytest.raises(ConfigError, match="has no nccl"):
        BroadcastSender(1, 4096, backend="nccl")
    place = {"kind": "broadcast", "host": "127.0.0.1", "port": 1, "world": 2, "backend": "gloo", "slot_bytes": 64}
    with pytest.raises(WeightSyncError, match="rollout worker 1, but the sender expects 1"):
        BroadcastReceiver({**place, "prefix": "p", "seconds": 1}, 1)
