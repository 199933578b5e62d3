"""Replicas whose engine loses its own process outside a call to generate, while the replica's process lives."""

from __future__ import annotations

from typing import Any

import pytest

from omni_portable.contracts.errors import EngineEndedInUpdateError, WeightSyncError
from omni_portable.contracts.rollout import RolloutResult
from omni_portable.rollout.router import Router
from tests.rollout.router_fakes import Replica, stream

ENDED = "the engine ended during the weight update to policy version 5"


def crew(count: int, made: list[Replica], **settings: Any) -> tuple[Router, list[Replica]]:
    replicas = {f"rollout-{i}": Replica(f"rollout-{i}") for i in range(count)}

    def restart(name: str) -> Replica:
        made.append(Replica(name))
        return made[-1]

    router = Router(replicas, restart=restart, **settings)
    router.pause()
    router.update_weights(stream(1.0), 4)
    return router, list(replicas.values())


def test_a_replica_without_engine_is_replaced_and_gets_the_version_that_the_others_took() -> None:
    made: list[Replica] = []
    router, (first, second) = crew(2, made, restarts=1)
    second.refuse = "ended"
    assert router.update_weights(stream(5.0), 5).policy_version == 5
    assert first.lifecycle.policy_version == 5
    router.close()  # waits for the successor
    router.resume()
    assert [replica.label for replica in made] == ["rollout-1"]
    assert sorted(router.replicas) == ["rollout-0", "rollout-1"]
    assert made[0].lifecycle.policy_version == 5
    assert made[0].tensors["w"][0] == 5
    assert made[0].lifecycle.state.value == "running"
    assert router.statistics()["perf/rollout/restarts"] == 1


def test_the_only_replica_is_replaced_and_its_successor_is_sent_the_update() -> None:
    made: list[Replica] = []
    router, (only,) = crew(1, made, restarts=1)
    only.refuse = "ended"
    assert router.update_weights(stream(5.0), 5).policy_version == 5
    assert made[0].tensors["w"][0] == 5
    assert made[0].calls[:2] == ["pause", "update_weights"], "first the version that all held"
    router.close()


def test_beyond_the_restarts_the_update_fails_with_one_sentence_and_may_be_sent_again() -> None:
    made: list[Replica] = []
    router, (only,) = crew(1, made, restarts=0)
    only.refuse = "ended"
    with pytest.raises(WeightSyncError) as caught:
        router.update_weights(stream(5.0), 5)
    assert isinstance(caught.value, EngineEndedInUpdateError)
    assert caught.value.problem == f"rollout replica 'rollout-0': {ENDED}"
    only.refuse = ""
    assert router.update_weights(stream(5.0), 6).policy_version == 6
    assert made == []
    router.close()


def test_as_many_as_may_be_restarted_are_replaced_and_the_next_one_fails() -> None:
    made: list[Replica] = []
    router, (first, second) = crew(2, made, restarts=1)
    first.refuse = second.refuse = "ended"
    with pytest.raises(WeightSyncError, match="replica 'rollout-1': the engine ended during"):
        router.update_weights(stream(5.0), 5)
    router.close()
    assert [replica.label for replica in made] == ["rollout-0"]


def test_a_successor_whose_engine_ends_while_it_joins_is_replaced_too() -> None:
    made: list[Replica] = []

    def restart(name: str) -> Replica:
        made.append(Replica(name))
        made[-1].refuse = "ended" if len(made) == 1 else ""
        return made[-1]

    replicas = {"rollout-0": Replica("rollout-0")}
    router = Router(replicas, restart=restart, restarts=2)
    router.pause()
    router.update_weights(stream(1.0), 4)
    replicas["rollout-0"].die()
    assert router.update_weights(stream(5.0), 5).policy_version == 5
    assert len(made) == 2
    assert made[1].tensors["w"][0] == 5
    router.close()


def test_the_error_crosses_the_worker_s_wire_as_what_it_is() -> None:
    pytest.importorskip("ray")
    from omni_backends.launch.ray.wire import answered, value

    def fail() -> RolloutResult:
        raise EngineEndedInUpdateError(ENDED, remedy="look for a lack of memory")

    with pytest.raises(EngineEndedInUpdateError, match=ENDED) as caught:
        value(answered(fail), "rollout-0")
    assert caught.value.remedy == "look for a lack of memory"
