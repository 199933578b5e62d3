import pytest

from omni_portable.contracts.errors import LifecycleError, WeightSyncError
from omni_portable.contracts.lifecycle import EngineState
from omni_portable.rollout.lifecycle import Lifecycle

OPERATIONS = (
    "generate",
    "abort",
    "pause",
    "resume",
    "sleep",
    "wake",
    "update_weights",
    "recall_weights",
    "weights_checksum",
    "health",
)


def running(tags=("weights",)):
    return Lifecycle("test", tags)


def paused(tags=("weights",)):
    lifecycle = running(tags)
    lifecycle.paused()
    return lifecycle


def asleep(level=1, tags=("weights",)):
    lifecycle = paused(tags)
    lifecycle.slept(level)
    return lifecycle


def woken(level, *tags, of=("weights",)):
    lifecycle = asleep(level, of)
    lifecycle.woke(tags)
    return lifecycle


def refilled():
    lifecycle = woken(2, "weights")
    lifecycle.updated(0)
    return lifecycle


def recalled():
    lifecycle = paused()
    lifecycle.updated(2)
    lifecycle.recalled(1)
    return lifecycle


def gone_back():
    lifecycle = recalled()
    lifecycle.went_back()
    return lifecycle


def sent_again():
    lifecycle = recalled()
    lifecycle.require_version(1)
    lifecycle.updated(1)
    return lifecycle


PAUSED = {"abort", "resume", "sleep", "update_weights", "recall_weights", "weights_checksum", "health"}
TABLE = {
    "running": (running, {"generate", "abort", "pause", "weights_checksum", "health"}),
    "paused": (paused, PAUSED),
    "asleep": (asleep, {"abort", "wake", "health"}),
    "asleep at level 2": (lambda: asleep(2), {"abort", "wake", "health"}),
    "woken from level 1": (
        lambda: woken(1, "weights"),
        PAUSED,
    ),
    "woken from level 2": (lambda: woken(2, "weights"), {"abort", "sleep", "update_weights", "health"}),
    "updated after level 2": (
        refilled,
        PAUSED,
    ),
    "recalled": (recalled, {"abort", "sleep", "update_weights", "health"}),
    "sent again after a recall": (sent_again, PAUSED),
    "gone back by itself": (gone_back, PAUSED),
    "weights awake, cache asleep": (
        lambda: woken(1, "weights", of=("weights", "kv_cache")),
        {"abort", "wake", "update_weights", "recall_weights", "weights_checksum", "health"},
    ),
    "cache awake, weights asleep": (
        lambda: woken(1, "kv_cache", of=("weights", "kv_cache")),
        {"abort", "wake", "health"},
    ),
}


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("situation", TABLE)
def test_every_operation_is_legal_or_refused_with_reasons(situation, operation):
    make, legal = TABLE[situation]
    lifecycle = make()
    if operation in legal:
        lifecycle.require(operation)
        return
    before = (lifecycle.state, lifecycle.policy_version, lifecycle.asleep)
    with pytest.raises(LifecycleError) as caught:
        lifecycle.require(operation)
    message = str(caught.value)
    assert "'test'" in message
    assert lifecycle.state.value in message
    assert f"cannot {operation}" in message
    assert set(caught.value.choices) == legal
    assert (lifecycle.state, lifecycle.policy_version, lifecycle.asleep) == before


def test_states_go_round_in_the_documented_circle():
    lifecycle = running()
    states = [lifecycle.state]
    for commit in (
        lifecycle.paused,
        lambda: lifecycle.slept(1),
        lambda: lifecycle.woke(["weights"]),
        lifecycle.resumed,
    ):
        commit()
        states.append(lifecycle.state)
    expected = [EngineState.RUNNING, EngineState.PAUSED, EngineState.ASLEEP, EngineState.PAUSED, EngineState.RUNNING]
    assert states == expected


def test_level_1_after_level_2_does_not_bring_lost_weights_back():
    lifecycle = woken(2, "weights")
    lifecycle.slept(1)
    lifecycle.woke(["weights"])
    with pytest.raises(LifecycleError, match="without weights"):
        lifecycle.require("resume")


@pytest.mark.parametrize("level", [0, 3, -1])
def test_unknown_sleep_level_is_refused(level):
    with pytest.raises(LifecycleError, match=f"level {level}"):
        paused().require_level(level)


@pytest.mark.parametrize("tags", [(), ("kv_cache",), ("weights", "kv_cache"), ("wieghts",)])
def test_only_sleeping_tags_may_be_woken(tags):
    with pytest.raises(LifecycleError) as caught:
        asleep().require_tags(tags)
    assert caught.value.choices == ("weights",)


@pytest.mark.parametrize(("version", "accepted"), [(4, False), (5, False), (6, True), (9, True)])
def test_versions_only_grow(version, accepted):
    lifecycle = Lifecycle("test", version=5)
    if accepted:
        lifecycle.require_version(version)
    else:
        with pytest.raises(WeightSyncError, match="holds policy version 5"):
            lifecycle.require_version(version)


def test_discarded_weights_may_be_sent_again_at_their_version():
    lifecycle = Lifecycle("test", version=5)
    lifecycle.paused()
    lifecycle.slept(2)
    lifecycle.woke(["weights"])
    lifecycle.require_version(5)
    with pytest.raises(WeightSyncError):
        lifecycle.require_version(4)
