import pytest

from omni_portable.trainer.timing import Span, StageClock, covered, critical_path


class Hand:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.time = 100.0

    def __call__(self) -> float:
        return self.time


def test_seconds_by_stage_until_taken() -> None:
    hand = Hand()
    clock = StageClock(hand)
    with clock.measure("rollout"):
        hand.time += 2.0
    with clock.measure("update"):
        hand.time += 3.0
    clock.add("sync", 0.5)
    taken = clock.take()
    assert (taken["timing_s/rollout"], taken["timing_s/update"], taken["timing_s/sync"]) == (2.0, 3.0, 0.5)
    assert (taken["role_s/actor/busy"], taken["role_s/actor/idle"]) == (3.0, 2.0)
    assert "timing_s/rollout" not in clock.take()


def test_a_stage_that_goes_on_counts_in_both_windows() -> None:
    hand = Hand()
    clock = StageClock(hand)
    with clock.measure("rollout"):
        hand.time += 2.0
        first = clock.take()
        hand.time += 3.0
    second = clock.take()
    assert (first["role_s/rollout/busy"], second["role_s/rollout/busy"]) == (2.0, 3.0)
    assert second["timing_s/rollout"] == 5.0, "its own wall time is reported once, when it ended"
    assert clock.spans == [Span("rollout", 2.0, 5.0)]


def test_validation_is_the_work_of_no_role() -> None:
    hand = Hand()
    clock = StageClock(hand)
    with clock.measure("rollout"):
        hand.time += 2.0
    with clock.measure("update"):
        hand.time += 3.0
    with clock.measure("validate"):
        hand.time += 90.0
    taken = clock.take()
    assert (taken["role_s/actor/busy"], taken["role_s/actor/idle"]) == (3.0, 2.0)
    assert (taken["role_s/rollout/busy"], taken["role_s/rollout/idle"]) == (2.0, 3.0)
    assert (taken["timing_s/validate"], taken["critical_path_s/validate"]) == (90.0, 90.0)


def test_overlapping_spans_cover_their_union() -> None:
    spans = [Span("rollout", 0, 4), Span("rollout", 1, 2), Span("rollout", 6, 7), Span("reward", 3, 9)]
    assert covered(spans, ("rollout",)) == 5
    assert covered(spans, ("rollout", "reward")) == 9


def test_the_critical_path_blames_the_producer_only_while_the_consumer_waits() -> None:
    spans = [
        Span("step", 0, 11),
        Span("wait", 0, 5),
        Span("rollout", 0, 3),
        Span("reward", 2, 4),
        Span("update", 5, 9),
        Span("rollout", 5, 11),
        Span("sync", 9, 10),
    ]
    assert critical_path(spans) == pytest.approx({"rollout": 4, "reward": 1, "other": 1, "update": 4, "sync": 1})
