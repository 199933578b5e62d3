"""How the work of the replay buffer grows with what waits in it: comparisons are counted, not seconds."""

from __future__ import annotations

import functools
import math
import random

import pytest

from omni_portable.contracts.dataplane import GroupTag
from omni_portable.planning.simulate.roles import LightPlane, light_group
from omni_portable.rollout import replay_buffer
from omni_portable.rollout.replay_buffer import ReplayBuffer


@functools.total_ordering
class Counted:
    """A sort key that counts how often it is compared."""

    comparisons = 0

    def __init__(self, key: tuple[int, int, str]) -> None:
        self.key = key

    def __lt__(self, other: Counted | tuple[int, int, str]) -> bool:
        Counted.comparisons += 1
        return self.key < (other.key if isinstance(other, Counted) else other)

    def __gt__(self, other: Counted | tuple[int, int, str]) -> bool:
        Counted.comparisons += 1
        return self.key > (other.key if isinstance(other, Counted) else other)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Counted) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)


class CountingPlane(LightPlane):
    """Counts the groups it is asked to hand over or to list."""

    def __init__(self) -> None:
        super().__init__()
        self.touched = 0

    def tags(self) -> list[GroupTag]:
        tags = super().tags()
        self.touched += len(tags)
        return tags

    def take(self, group_ids, *rest, **more):
        self.touched += len(group_ids)
        return super().take(group_ids, *rest, **more)

    def drop(self, group_ids):
        self.touched += len(group_ids)
        super().drop(group_ids)


def filled(monkeypatch: pytest.MonkeyPatch, size: int) -> tuple[ReplayBuffer, CountingPlane]:
    """`size` groups of two versions, added in random order of submission."""
    monkeypatch.setattr(replay_buffer, "order", lambda tag: Counted((tag.policy_version, tag.submission, tag.group_id)))
    plane = CountingPlane()
    buffer = ReplayBuffer(plane, max_staleness=1)
    numbers = list(range(size))
    random.Random(size).shuffle(numbers)
    for number in numbers:
        buffer.add(light_group(str(number), number, number % 2, 16))
    return buffer, plane


@pytest.mark.parametrize("size", [1_000, 4_000, 16_000])
def test_an_operation_compares_in_proportion_to_the_logarithm(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    buffer, plane = filled(monkeypatch, size)
    bound = 3 * math.log2(size)
    for number in (size * 3, size + 7, size * 2):
        Counted.comparisons = 0
        buffer.add(light_group(f"new-{number}", number, number % 2, 16))
        assert Counted.comparisons < bound
    Counted.comparisons = plane.touched = 0
    for _ in range(50):
        buffer.available(1)
    assert Counted.comparisons < 50 * bound
    assert plane.touched == 0
    Counted.comparisons = 0
    assert len(buffer.sample(16, 1)) == 16
    assert Counted.comparisons < 17 * bound
    assert plane.touched == 16


def test_what_became_stale_is_found_without_looking_at_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    buffer, plane = filled(monkeypatch, 8_000)
    plane.touched = 0
    assert len(buffer.sample(8, 2)) == 8
    assert plane.touched == 4_000 + 8  # the evicted and the sampled, not those that stay
    assert len(buffer) == 3_992
