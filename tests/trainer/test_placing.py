"""Roles of a run: the engine that is lent lives with the actor, on the same device, and sleeps as configured; replicas
that share devices with ranks are known as such."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest

from omni_backends.launch.ray import REMOTE, RayOptions
from omni_portable.config.schema import HybridConfig, LauncherConfig
from omni_portable.contracts.errors import ConfigError, WorkerLostError
from omni_portable.contracts.launcher import Role
from omni_portable.models.setup import EngineSetup
from omni_portable.trainer.placing import _start_all, run_roles
from tests.support.engines import make_setup


def lending_setup(**hybrid: object) -> EngineSetup:
    setup = make_setup()
    trainer = replace(setup.config.trainer, mode="separate_async", hybrid=HybridConfig(**hybrid))  # type: ignore[arg-type]
    rollout = replace(setup.config.rollout, replicas=2)
    return replace(setup, config=replace(setup.config, trainer=trainer, rollout=rollout))


def test_nothing_is_lent_unless_asked_for() -> None:
    assert {role.name for role in run_roles(lending_setup())} == {"actor", "rollout"}


def test_the_lent_engine_is_built_with_the_actor() -> None:
    roles = run_roles(lending_setup(enabled=True, sleep_level=2))
    (lent,) = [role for role in roles if role.name == "lent"]
    actor = roles[0]
    assert lent.label == "lent-0"
    assert lent.name not in REMOTE, "it is no process of its own"
    assert lent.config["device"] == actor.config["device"], "named exactly, as every process may read it"
    rollout = lent.config["rollout"]
    assert (rollout["sleep_level"], rollout["replicas"]) == (2, 1)
    assert lent.here["setup"].config.rollout.sleep_level == 2
    assert actor.config["rollout"]["sleep_level"] == 0


def shared_setup(**launcher: object) -> EngineSetup:
    setup = make_setup()
    actor = replace(setup.config.actor, engine="fsdp2", world_size=2)
    options = {"rollout_devices": 0.0} | launcher
    config = replace(setup.config, actor=actor, rollout=replace(setup.config.rollout, replicas=2))
    return replace(setup, config=replace(config, launcher=LauncherConfig("ray", options)))


def test_replicas_without_devices_of_their_own_are_beside_the_ranks() -> None:
    beside = {role.label: role.beside for role in run_roles(shared_setup())}
    assert beside == {"actor-0": "", "rollout-0": "actor", "rollout-1": "actor"}
    assert {role.beside for role in run_roles(shared_setup(rollout_devices=1.0))} == {""}
    assert {role.beside for role in run_roles(lending_setup())} == {""}, "no ranks"


def test_whoever_shares_a_device_with_the_actor_starts_after_it() -> None:
    begun: list[str] = []

    class Recording:
        def start(self, role: Role) -> str:
            time.sleep(0.05 if role.name == "actor" else 0.0)
            begun.append(role.name)
            return role.label

    roles = run_roles(shared_setup())
    handles = _start_all(Recording(), roles)  # type: ignore[arg-type]
    assert begun == ["actor", "rollout", "rollout"]
    assert handles == {role.label: role.label for role in roles}


def test_the_cluster_sets_nothing_aside_for_it() -> None:
    from omni_backends.launch.ray.pools import pools

    lent = [pool for pool in pools(run_roles(lending_setup(enabled=True)), RayOptions()) if pool.name == "lent"]
    assert [(pool.replicas, pool.each) for pool in lent] == [(1, {})]


class Slow:
    """Starts the actor when the others have begun, and these only once they are stopped."""

    def __init__(self, fails: Callable[[], BaseException]) -> None:
        self.fails, self.begun, self.stopped = fails, threading.Semaphore(0), threading.Event()
        self.asked: set[str] = set()

    def start(self, role: Role) -> object:
        if role.name != "actor":
            self.begun.release()
            assert self.stopped.wait(60)
            raise WorkerLostError(f"the process of '{role.label}' is gone")
        assert all(self.begun.acquire(timeout=60) for _ in range(2))
        raise self.fails()

    def stop(self, role: Role) -> None:
        self.asked.add(role.label)
        if self.asked == {"rollout-0", "rollout-1"}:
            self.stopped.set()


@pytest.mark.parametrize("fails", [KeyboardInterrupt, ConfigError])
def test_a_start_that_is_broken_off_waits_for_nobody(fails: type[BaseException]) -> None:
    launcher = Slow(partial(fails, "stopped"))
    with pytest.raises(fails):
        _start_all(launcher, run_roles(lending_setup()))  # type: ignore[arg-type]
    assert launcher.asked == {"rollout-0", "rollout-1"}
