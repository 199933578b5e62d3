"""Shared memory that is kept between syncs: used again, in turns, and what workers go back to."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from omni_backends.sync import SharedMemorySender, collect_checksums, memory, send_weights
from omni_portable.contracts.errors import WeightSyncError
from omni_portable.models.weights import NamedTensorStream, checksums, make_stream
from tests.support.sync_target import DictTarget, InPlaceTarget, LocalWorkers

SIZES = {"large": 30_000, "bias": 7, "other": 20_001}


def values(seed: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randn(size, generator=generator) for name, size in SIZES.items()}


def stream(seed: int) -> NamedTensorStream:
    return make_stream("full", values(seed).items(), None)


def in_place(count: int = 2) -> LocalWorkers:
    return LocalWorkers(*(InPlaceTarget(values(99)) for _ in range(count)))


def assert_holds(group: LocalWorkers, seed: int) -> None:
    assert collect_checksums(group) == checksums(values(seed).items())


@pytest.fixture
def channel() -> Iterator[SharedMemorySender]:
    opened = SharedMemorySender(65536)
    yield opened
    opened.close()


def test_two_segments_take_turns_and_are_used_again(channel: SharedMemorySender) -> None:
    group = in_place()
    places = []
    for version in range(1, 6):
        report = send_weights(stream(version), group, version=version, channel=channel)
        assert report.buckets == channel.slots == 4
        assert_holds(group, version)
        (former,) = {receiver._former.place for receiver in group.receivers if receiver._former is not None}
        places.append(former)
    assert places[0] == places[2] == places[4]
    assert places[1] == places[3] != places[0]


def test_the_last_update_can_be_read_and_sent_again_while_the_next_fails(channel: SharedMemorySender) -> None:
    group = in_place()
    send_weights(stream(1), group, version=1, channel=channel)
    send_weights(stream(2), group, version=2, channel=channel)
    held = channel.held(stream(2).manifest)
    assert held is not None
    damaged = NamedTensorStream(stream(3).manifest, values(3) | {"other": torch.zeros(20_001)})
    with pytest.raises(WeightSyncError, match="'other' arrived with checksum"):
        send_weights(damaged, group, version=3, channel=channel)
    assert checksums(held.items()) == checksums(values(2).items())
    again = make_stream("full", held.items(), None)
    started_anew = in_place()
    send_weights(again, started_anew, version=2, channel=channel, repeat=True)
    assert_holds(started_anew, 2)
    send_weights(stream(3), started_anew, version=3, channel=channel)
    moved = channel.held(stream(3).manifest)
    assert moved is not None
    assert checksums(moved.items()) == checksums(values(3).items())


@pytest.mark.parametrize("failures", [1, 2])
def test_workers_go_back_to_the_former_update_without_a_copy_of_their_weights(
    channel: SharedMemorySender, failures: int
) -> None:
    group = in_place()
    send_weights(stream(1), group, version=1, channel=channel)
    send_weights(stream(2), group, version=2, channel=channel)
    for _ in range(failures):
        group.targets[1].fail.add("apply")
        with pytest.raises(WeightSyncError, match="worker 1, weights_commit: RuntimeError: no room for 'bias'"):
            send_weights(stream(3), group, version=3, channel=channel)
        assert_holds(group, 2)
    assert [target.outlines for target in group.targets if isinstance(target, InPlaceTarget)] == [1 + failures] * 2
    damaged = NamedTensorStream(stream(3).manifest, values(3) | {"other": torch.zeros(20_001)})
    with pytest.raises(WeightSyncError, match="'other' arrived with checksum"):
        send_weights(damaged, group, version=3, channel=channel)
    assert_holds(group, 2)
    assert send_weights(stream(3), group, version=3, channel=channel).version == 3
    assert_holds(group, 3)


def test_the_first_update_and_one_that_overwrites_the_former_are_undone_from_a_copy(
    channel: SharedMemorySender, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = in_place(1)
    target = group.targets[0]
    assert isinstance(target, InPlaceTarget)
    target.fail.add("apply")
    with pytest.raises(WeightSyncError, match="no room"):
        send_weights(stream(1), group, version=1, channel=channel)
    assert_holds(group, 99)
    monkeypatch.setattr(channel, "arrived", lambda: None)  # as where the last answer was lost on its way
    send_weights(stream(1), group, version=1, channel=channel)
    target.fail.add("apply")
    with pytest.raises(WeightSyncError, match="no room"):
        send_weights(stream(2), group, version=2, channel=channel)
    assert_holds(group, 1)
    assert target.outlines == 0


def test_targets_that_offer_no_outline_copy_their_weights(channel: SharedMemorySender) -> None:
    group = LocalWorkers(DictTarget(values(99)))
    send_weights(stream(1), group, version=1, channel=channel)
    group.targets[0].fail.add("apply")
    with pytest.raises(WeightSyncError, match="no room"):
        send_weights(stream(2), group, version=2, channel=channel)
    assert_holds(group, 1)


def test_where_there_is_no_room_for_two_updates_two_buckets_are_used(
    channel: SharedMemorySender, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = in_place()
    send_weights(stream(1), group, version=1, channel=channel)
    monkeypatch.setattr(memory, "free_bytes", lambda: memory.ROOM)
    channel.close()
    for version in (2, 3):
        report = send_weights(stream(version), group, version=version, channel=channel)
        assert (report.buckets, channel.slots) == (4, 2)
        assert_holds(group, version)
        assert all(receiver._former is None for receiver in group.receivers)
        assert channel.held(stream(version).manifest) is None
    group.targets[0].fail.add("apply")
    with pytest.raises(WeightSyncError, match="no room"):
        send_weights(stream(4), group, version=4, channel=channel)
    assert_holds(group, 3)


def test_a_larger_update_gets_larger_memory(channel: SharedMemorySender) -> None:
    group = LocalWorkers(InPlaceTarget({**values(99), "new": torch.zeros(100_000)}))
    send_weights(stream(1), group, version=1, channel=channel)
    larger = {**values(2), "new": torch.randn(100_000)}
    for version in (2, 3):
        send_weights(make_stream("full", larger.items(), None), group, version=version, channel=channel)
        assert collect_checksums(group) == checksums(larger.items())


def test_closing_gives_the_memory_back(channel: SharedMemorySender) -> None:
    def mapped() -> int:
        gc.collect()
        return sum("/dev/shm/" in line for line in Path("/proc/self/maps").read_text().splitlines())

    before, group = mapped(), in_place(1)
    send_weights(stream(1), group, version=1, channel=channel)
    send_weights(stream(2), group, version=2, channel=channel)
    assert mapped() == before + 4  # two of the sender, which the worker has mapped, too
    channel.close()
    assert mapped() == before + 2
