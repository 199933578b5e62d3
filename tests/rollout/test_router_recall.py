"""An update that one replica cannot apply after all have verified it: the others go back to the version they had."""

from __future__ import annotations

import asyncio

import pytest

from omni_portable.contracts.errors import LifecycleError, WeightSyncError
from omni_portable.contracts.rollout import RecallableUpdates
from omni_portable.rollout.router import Router
from tests.rollout.router_fakes import Replica, stream
from tests.support.requests import make_request


def crew(count: int = 3, keep: bool = False, keeps: bool = True) -> tuple[Router, list[Replica]]:
    """Paused replicas that hold version 1.

    Args:
        keep: the router has a copy of its weights.
        keeps: each replica has what an update replaced.
    """
    replicas = [Replica(f"rollout-{i}") for i in range(count)]
    for replica in replicas:
        replica.open.set()
        replica.keeps = keeps
    router = Router({replica.label: replica for replica in replicas}, keep=keep)
    router.pause()
    router.update_weights(stream(1.0), 1)
    return router, replicas


def states(replicas: list[Replica]) -> list[tuple[str, int, float]]:
    return [(r.lifecycle.state.value, r.lifecycle.policy_version, float(r.tensors["w"][0])) for r in replicas]


@pytest.mark.parametrize(("keep", "keeps"), [(False, True), (True, False)], ids=["of their own", "of the router"])
def test_all_stay_paused_at_the_old_version_with_its_weights(keep: bool, keeps: bool) -> None:
    router, replicas = crew(keep=keep, keeps=keeps)
    assert isinstance(replicas[0], RecallableUpdates)
    replicas[1].refuse = "apply"
    with pytest.raises(WeightSyncError, match="rollout-1"):
        router.update_weights(stream(3.0), 3)
    replicas[1].refuse = ""
    assert states(replicas) == [("paused", 1, 1.0)] * 3
    assert router.health().policy_version == 1
    assert router.weights_checksum() == {"w": stream(1.0).manifest.tensors["w"].checksum}
    router.resume()
    drawn = asyncio.run(router.generate([make_request(i) for i in range(3)]))
    assert {t.policy_version for t in drawn.trajectories} == {1}, "a run that goes on without it draws from the old one"
    router.pause()
    assert router.update_weights(stream(4.0), 4).policy_version == 4
    assert states(replicas) == [("paused", 4, 4.0)] * 3


def test_a_first_update_is_taken_back_to_the_weights_that_the_replicas_began_with() -> None:
    replicas = [Replica(f"rollout-{i}") for i in range(2)]
    router = Router({replica.label: replica for replica in replicas})
    router.pause()
    replicas[1].refuse = "apply"
    with pytest.raises(WeightSyncError) as caught:
        router.update_weights(stream(1.0), 1)
    assert caught.value.problem == "rollout replica 'rollout-1': applying failed at 'w'"
    assert states(replicas) == [("paused", 0, 0.0)] * 2
    assert router.weights_checksum() == {"w": stream(0.0).manifest.tensors["w"].checksum}
    router.resume()


def test_one_that_cannot_go_back_draws_nothing_until_an_update_reaches_it(caplog: pytest.LogCaptureFixture) -> None:
    router, replicas = crew()
    replicas[0].refuse, replicas[1].refuse = "recall", "apply"
    with pytest.raises(WeightSyncError, match="rollout replica 'rollout-1': applying failed at 'w'") as caught:
        router.update_weights(stream(2.0), 2)
    said = "rollout replica 'rollout-0' took the update and did not go back to policy version 1: going back failed"
    assert said in caplog.text
    assert caught.value.problem.endswith(f"; {said}")
    assert states(replicas) == [("paused", 1, 2.0), ("paused", 1, 1.0), ("paused", 1, 1.0)]
    with pytest.raises(LifecycleError, match="'rollout-0'.*weights of version 2, which was recalled.* cannot resume"):
        router.resume()
    for replica in replicas:
        replica.refuse = ""
        if replica is not replicas[0]:
            replica.pause()
    assert router.update_weights(stream(3.0), 3).policy_version == 3
    assert states(replicas) == [("paused", 3, 3.0)] * 3


def test_one_that_says_another_version_keeps_nobody_else_ahead(caplog: pytest.LogCaptureFixture) -> None:
    router, replicas = crew(keep=True, keeps=False)
    replicas[1].refuse = "version"
    with pytest.raises(WeightSyncError, match="'rollout-1' holds policy version 2, not 3 as the others do"):
        router.update_weights(stream(3.0), 3)
    assert "'rollout-1' took the update and did not go back to policy version 1: it holds version 0" in caplog.text
    assert states([replicas[0], replicas[2]]) == [("paused", 1, 1.0)] * 2


def test_one_that_dies_on_the_way_back_is_lost() -> None:
    router, replicas = crew()
    replicas[1].refuse = "apply"
    replicas[2].recall_weights = lambda version: (replicas[2].die(), replicas[2]._alive())  # type: ignore[method-assign]
    with pytest.raises(WeightSyncError, match="'rollout-1': applying failed"):
        router.update_weights(stream(2.0), 2)
    assert router.replicas == ("rollout-0", "rollout-1")
    assert states(replicas[:2]) == [("paused", 1, 1.0)] * 2


def test_without_a_copy_of_the_old_weights_they_stay_paused_as_they_are(caplog: pytest.LogCaptureFixture) -> None:
    router, replicas = crew(keeps=False)
    replicas[1].refuse = "apply"
    with pytest.raises(WeightSyncError, match="'rollout-1': applying failed") as caught:
        router.update_weights(stream(2.0), 2)
    assert states(replicas) == [("paused", 1, 2.0), ("paused", 1, 1.0), ("paused", 1, 2.0)]
    for name in ("rollout-0", "rollout-2"):
        said = f"'{name}' took the update and did not go back to policy version 1: neither it nor the trainer has"
        assert said in caught.value.problem
        assert said in caplog.text
    with pytest.raises(LifecycleError, match="weights of version 2, which was recalled.* cannot resume"):
        router.resume()
    for replica in replicas:
        replica.refuse = ""
        if replica.lifecycle.state.value == "running":
            replica.pause()
    router.update_weights(stream(3.0), 3)
    assert states(replicas) == [("paused", 3, 3.0)] * 3


def test_only_an_earlier_version_can_be_gone_back_to() -> None:
    _, (replica, *_) = crew()
    for version in (1, 2):
        with pytest.raises(WeightSyncError, match="holds policy version 1 and cannot go back to"):
            replica.recall_weights(version)
    replica.resume()
    with pytest.raises(LifecycleError, match="is running and cannot recall_weights"):
        replica.recall_weights(0)
