import pytest

from omni_portable.contracts.errors import LifecycleError
from omni_portable.rollout.inflight import InFlight, Outcome
from omni_portable.rollout.statistics import RolloutStatistics


def test_ids_in_flight_or_repeated_are_refused_and_nothing_is_accepted():
    inflight = InFlight()
    inflight.open(["a"])
    for names in (["b", "a"], ["c", "c"]):
        with pytest.raises(LifecycleError, match="in flight already or were given twice"):
            inflight.open(names)
    assert len(inflight) == 1


def test_abort_names_only_what_was_in_flight():
    inflight = InFlight()
    first, second = inflight.open(["a", "b"])
    inflight.finish(first)
    assert inflight.abort(["a", "b", "unknown", "b"]) == ("b",)
    assert (first.outcome, second.outcome) == (Outcome.FINISHED, Outcome.ABORTED)
    assert inflight.abort() == ()


def test_a_resubmitted_id_does_not_revive_the_aborted_ticket():
    inflight = InFlight()
    (old,) = inflight.open(["a"])
    inflight.abort()
    (new,) = inflight.open(["a"])
    inflight.finish(old)
    inflight.close([old])
    assert old.outcome is Outcome.ABORTED
    assert new.outcome is Outcome.PENDING
    assert len(inflight) == 1


def test_close_lets_go_of_what_is_pending():
    inflight = InFlight()
    tickets = inflight.open(["a", "b"])
    inflight.finish(tickets[0])
    inflight.close(tickets)
    assert [ticket.outcome for ticket in tickets] == [Outcome.FINISHED, Outcome.ABORTED]
    assert len(inflight) == 0


def test_statistics_report_and_reset():
    statistics = RolloutStatistics(("forwards",))
    assert statistics.take() == {"perf/rollout/batches": 0.0, "perf/rollout/forwards": 0.0}
    for size in (4, 2):
        statistics.batch(size)
    statistics.count("forwards", 3)
    with statistics.timed("denoise"):
        pass
    figures = statistics.take()
    assert figures.pop("perf/rollout/seconds/denoise") >= 0.0
    assert figures == {
        "perf/rollout/batches": 2.0,
        "perf/rollout/batch_size/mean": 3.0,
        "perf/rollout/batch_size/min": 2.0,
        "perf/rollout/batch_size/max": 4.0,
        "perf/rollout/forwards": 3.0,
    }
    assert statistics.take() == {"perf/rollout/batches": 0.0, "perf/rollout/forwards": 0.0}
