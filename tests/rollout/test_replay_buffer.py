import asyncio
from dataclasses import replace

import pytest
import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from omni_backends.dataplane.local import LocalDataPlane
from omni_portable.contracts.dataplane import COLUMNS, DataPlaneFullError
from omni_portable.contracts.errors import ConfigError, DataError
from omni_portable.rollout.replay_buffer import ReplayBuffer
from tests.support.planes import media_group
from tests.support.requests import make_group


def ids(groups):
    return [group.group_id for group in groups]


def test_groups_come_out_by_version_then_submission_whatever_order_they_arrived_in(plane):
    buffer = ReplayBuffer(plane, max_staleness=9)
    for name, submission, version in (("late", 3, 1), ("new", 0, 2), ("early", 1, 1), ("old", 7, 0)):
        buffer.add(make_group(name, submission, [version] * 2))
    assert ids(buffer.sample(3, 2)) == ["old", "early", "late"]
    assert ids(buffer.sample(1, 2)) == ["new"]


def test_a_group_is_as_stale_as_its_oldest_sample_and_is_evicted_whole(plane):
    buffer = ReplayBuffer(plane, max_staleness=1)
    buffer.add(make_group("mixed", 0, [3, 1, 3]))
    buffer.add(make_group("fresh", 1, [2, 2]))
    assert buffer.available(3) == 1
    assert ids(buffer.sample(1, 3)) == ["fresh"]
    assert len(buffer) == 0
    assert buffer.statistics() == {
        "replay/added_groups": 2.0,
        "replay/sampled_groups": 1.0,
        "replay/evicted_groups": 1.0,
        "replay/evicted_trajectories": 3.0,
        "replay/staleness/mean": 1.0,
        "replay/staleness/max": 1.0,
        "replay/evicted_staleness/mean": 2.0,
        "replay/evicted_staleness/max": 2.0,
    }
    assert buffer.statistics()["replay/evicted_groups"] == 0.0


def test_a_group_id_may_be_added_once_even_after_it_left(plane):
    buffer = ReplayBuffer(plane, max_staleness=0)
    buffer.add(make_group("g", 0, [0]))
    with pytest.raises(DataError, match="'g' was added"):
        buffer.add(make_group("g", 1, [0]))
    buffer.sample(1, 0)
    with pytest.raises(DataError, match="'g' was added"):
        buffer.add(make_group("g", 2, [0]))


def test_groups_that_a_plane_already_holds_count_as_added(plane):
    plane.put(make_group("kept", 0, [0]))
    buffer = ReplayBuffer(plane, max_staleness=0)
    with pytest.raises(DataError):
        buffer.add(make_group("kept", 1, [0]))
    assert ids(buffer.sample(1, 0)) == ["kept"]


def test_asking_for_more_than_there_is_removes_nothing_fresh(plane):
    buffer = ReplayBuffer(plane, max_staleness=0)
    buffer.add(make_group("g", 0, [4]))
    with pytest.raises(DataError, match="asked for 2 groups but holds 1"):
        buffer.sample(2, 4)
    assert ids(buffer.sample(1, 4)) == ["g"]
    with pytest.raises(DataError, match="asked for 0 groups"):
        buffer.sample(0, 4)


def test_a_group_from_the_future_is_an_error_and_stays(plane):
    buffer = ReplayBuffer(plane, max_staleness=3)
    buffer.add(make_group("g", 0, [5]))
    for ask in (lambda: buffer.available(4), lambda: buffer.sample(1, 4)):
        with pytest.raises(DataError, match="newer than"):
            ask()
    assert len(buffer) == 1


def test_what_is_discarded_may_be_added_again(plane):
    buffer = ReplayBuffer(plane, max_staleness=0)
    for number in range(2):
        buffer.add(make_group(f"g{number}", number, [0]))
    assert buffer.discard() == 2
    assert (len(buffer), plane.tags(), buffer.discard()) == (0, [], 0)
    buffer.add(make_group("g0", 0, [0]))
    assert ids(buffer.sample(1, 0)) == ["g0"]


@pytest.mark.parametrize("field", ["rewards", "components", "details"])
def test_ragged_groups_are_refused(plane, field):
    group = make_group("g", 0, [0, 0])
    ragged = {"rewards": [1.0], "components": {"ocr": [1.0]}, "details": [{}]}
    setattr(group, field, ragged[field])
    buffer = ReplayBuffer(plane, max_staleness=0)
    with pytest.raises(DataError, match="has 2 trajectories"):
        buffer.add(group)
    assert len(buffer) == 0


def test_empty_groups_and_negative_staleness_are_refused(plane):
    with pytest.raises(DataError, match="no trajectories"):
        ReplayBuffer(plane, 0).add(make_group("g", 0, []))
    with pytest.raises(ConfigError, match="max_staleness is -1"):
        ReplayBuffer(plane, -1)


def test_the_plane_is_asked_for_what_training_reads_unless_more_is_wanted(plane):
    buffer = ReplayBuffer(plane, max_staleness=0)
    for number in range(2):
        buffer.add(media_group(f"g{number}", number))
    (lean,) = buffer.sample(1, 3)
    assert [each.artifacts for each in lean.trajectories] == [{}, {}]
    (whole,) = buffer.sample(1, 3, COLUMNS)
    assert sorted(whole.trajectories[1].artifacts) == ["image", "response"]


class Narrow(LocalDataPlane):
    """Room for one group, and for whoever comes first."""

    async def room(self, size=0):
        while self.tags():
            await asyncio.sleep(0)

    def put(self, group):
        if self.tags():
            raise DataPlaneFullError("full", size=7)
        super().put(group)


def test_store_waits_for_room_while_others_are_served():
    buffer, order = ReplayBuffer(Narrow(), max_staleness=0), []

    async def consume():
        while len(order) < 4:
            if buffer.available(0):
                order.extend(ids(buffer.sample(1, 0)))
            await asyncio.sleep(0)

    async def everything():
        await asyncio.gather(consume(), *(buffer.store(make_group(f"g{i}", i, [0])) for i in range(4)))

    asyncio.run(asyncio.wait_for(everything(), 60))
    assert sorted(order) == ["g0", "g1", "g2", "g3"]


def test_a_group_that_found_no_room_may_be_added_later():
    buffer = ReplayBuffer(Narrow(), max_staleness=0)
    buffer.add(make_group("a", 0, [0]))
    with pytest.raises(DataPlaneFullError):
        buffer.add(make_group("b", 1, [0]))
    assert len(buffer) == 1
    buffer.sample(1, 0)
    buffer.add(make_group("b", 1, [0]))
    assert ids(buffer.sample(1, 0)) == ["b"]


class BufferMachine(RuleBasedStateMachine):
    """The buffer against a plain list of (version, submission, id)."""

    def __init__(self, plane):
        super().__init__()
        self.plane = plane

    @initialize(staleness=st.integers(0, 3))
    def start(self, staleness):
        self.staleness = staleness
        self.plane.drop([tag.group_id for tag in self.plane.tags()])
        self.buffer = ReplayBuffer(self.plane, staleness)
        self.waiting, self.out, self.evicted, self.version, self.added = [], [], [], 0, 0

    @rule(lag=st.integers(0, 4), submission=st.integers(0, 5), size=st.integers(1, 3), large=st.booleans())
    def add(self, lag, submission, size, large):
        version = max(0, self.version - lag)
        name = f"g{self.added:03d}"
        group = make_group(name, submission, [version] * size)
        latents = torch.full((1 << 14 if large else 1,), float(self.added))  # large ones may wait elsewhere
        group.trajectories = [replace(each, final_latents=latents) for each in group.trajectories]
        self.buffer.add(group)
        self.waiting.append((version, submission, name))
        self.added += 1

    @rule()
    def publish(self):
        self.version += 1

    @rule(count=st.integers(1, 4))
    def sample(self, count):
        fresh = sorted(entry for entry in self.waiting if self.version - entry[0] <= self.staleness)
        stale = [entry for entry in self.waiting if entry not in fresh]
        self.evicted += [entry[2] for entry in stale]
        if len(fresh) < count:
            with pytest.raises(DataError):
                self.buffer.sample(count, self.version)
            self.waiting = fresh
            return
        groups = self.buffer.sample(count, self.version)
        assert ids(groups) == [entry[2] for entry in fresh[:count]]
        assert [f"g{int(group.trajectories[-1].final_latents[-1]):03d}" for group in groups] == ids(groups)
        self.out += ids(groups)
        self.waiting = fresh[count:]

    @invariant()
    def nothing_is_lost_or_duplicated(self):
        if hasattr(self, "waiting"):
            assert len(self.buffer) == len(self.waiting)
            everything = self.out + self.evicted + [entry[2] for entry in self.waiting]
            assert sorted(everything) == [f"g{i:03d}" for i in range(self.added)]

    def teardown(self):
        if hasattr(self, "evicted"):
            assert self.buffer.statistics()["replay/evicted_groups"] == len(self.evicted)


def test_the_buffer_behaves_as_its_model(plane):
    local = plane.name == "local"
    bounds = settings(
        max_examples=40 if local else 6,
        stateful_step_count=30 if local else 16,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],
    )
    run_state_machine_as_test(lambda: BufferMachine(plane), settings=bounds)
