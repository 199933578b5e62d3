"""Which roles a run has, and their handles once a launcher has started them."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from omni_portable.config.colocation import beside_ranks, rank_processes
from omni_portable.config.plugins import plugin_options
from omni_portable.config.schema import RunConfig
from omni_portable.config.teachers import pooled
from omni_portable.contracts import registry
from omni_portable.contracts.device import Device
from omni_portable.contracts.launcher import Launcher, Role
from omni_portable.contracts.reward import Scoring
from omni_portable.contracts.rollout import RolloutEngine
from omni_portable.contracts.teacher import Teaching
from omni_portable.contracts.training import TrainEngine
from omni_portable.models.setup import EngineSetup
from omni_portable.reward.compose import RewardComposer
from omni_portable.reward.revival import RevivedRewards
from omni_portable.rollout.fanout import give_up
from omni_portable.rollout.router import Router
from omni_portable.trainer.teaching import RevivedTeacher

log = logging.getLogger(__name__)
HERE = "omni_portable.trainer.roles"


@dataclass(frozen=True)
class Placed:
    """The started roles of a run.

    Args:
        teachers: name -> its workers; empty where the train engine holds the teachers.
        guests: label -> rollout engine on the actor's devices; empty where nothing is lent.
    """

    actor: TrainEngine
    engine: RolloutEngine
    rewards: Sequence[Scoring]
    guests: Mapping[str, RolloutEngine] = field(default_factory=dict)
    teachers: Mapping[str, Sequence[Teaching]] = field(default_factory=dict)


def make_launcher(config: RunConfig) -> Launcher:
    """The launcher that the configuration names; a package that it lacks is missed here."""
    name = config.launcher.name
    launcher: Launcher = registry.load("launcher", name)(
        plugin_options("launcher", name, config.launcher.options, key="launcher.options")
    )
    return launcher


def many_processes(config: RunConfig) -> bool:
    """Does the launcher put roles into processes of their own?"""
    return bool(registry.spec("launcher", config.launcher.name).capabilities.get("multi_process"))


def run_roles(setup: EngineSetup, composer: RewardComposer | None = None, logs: Path | None = None) -> list[Role]:
    """The roles of a run, the actor first.

    Args:
        setup / composer: of this process, for roles that are built in it; without a composer there is no reward.
        logs: folder for the output of other processes.
    """
    config = setup.config
    plain = _plain(config, setup.device)

    def role(name: str, replica: int = 0, **here: Any) -> Role:
        return Role(
            name,
            f"{HERE}:build_{name}",
            plain,
            replica=replica,
            here=here,
            environment=environment(setup.device, name),
            log=logs and logs / f"{name}-{replica}.log",
        )

    beside = "actor" if beside_ranks(config) else ""
    rollouts = [
        replace(role("rollout", replica, setup=setup), beside=beside) for replica in range(config.rollout.replicas)
    ]
    workers = range(config.reward.workers if composer else 0)
    rewards = [role("reward", worker, composer=None if worker else composer) for worker in workers]
    teachers = [
        replace(role("teacher", at, setup=setup), arguments={"teacher": name})
        for at, name in enumerate(_teacher_names(config))
    ]
    actor = replace(role("actor", setup=setup), ranks=rank_processes(config))
    return [actor, *rollouts, *rewards, *teachers, *lent_roles(setup)]


def _teacher_names(config: RunConfig) -> list[str]:
    """Of each worker of the pool, the teacher that it holds."""
    return [name for name in config.model.teachers for _ in range(config.teacher.workers)] if pooled(config) else []


def lent_roles(setup: EngineSetup) -> list[Role]:
    """The rollout engine that lives with the actor, where its devices are lent; it sleeps as trainer.hybrid says."""
    hybrid = setup.config.trainer.hybrid
    if not hybrid.enabled:
        return []
    rollout = replace(setup.config.rollout, sleep_level=hybrid.sleep_level, replicas=1)
    own = replace(setup, config=replace(setup.config, rollout=rollout))
    return [Role("lent", f"{HERE}:build_rollout", _plain(own.config, setup.device), here={"setup": own})]


def _plain(config: RunConfig, device: Device) -> dict[str, Any]:
    return asdict(replace(config, device=replace(config.device, name=_exact(device))))


def environment(device: Device, role: str) -> dict[str, str]:
    """Variables of a role's process: what the device asks for; what the user has set for this process wins, so that
    all roles compute alike."""
    return {name: os.environ.get(name, value) for name, value in device.environment(role).items()}


def place(launcher: Launcher, setup: EngineSetup, composer: RewardComposer, run_dir: Path, stack: ExitStack) -> Placed:
    """Start every role of a run.

    Roles in processes of their own may be lost: a router stands before the rollout replicas, and lost workers of
    either kind are started again up to launcher.restarts times.

    Args:
        stack: gets what must be undone before the launcher is shut down.
    """
    config = setup.config
    roles = run_roles(setup, composer, run_dir / "logs")
    launcher.reserve(roles)
    apart = many_processes(config)
    handles = _start_all(launcher, roles) if apart else {role.label: launcher.start(role) for role in roles}
    rollouts = {role.label: handles[role.label] for role in roles if role.name == "rollout"}
    rewards = [(role, handles[role.label]) for role in roles if role.name == "reward"]
    guests = {role.label: handles[role.label] for role in roles if role.name == "lent"}
    taught = [(role, handles[role.label]) for role in roles if role.name == "teacher"]
    for role, _ in taught:
        log.info("'%s' holds the teacher '%s'", role.label, role.arguments["teacher"])
    if not apart and not guests:
        teachers = _by_name(taught)
        return Placed(handles["actor-0"], rollouts["rollout-0"], [handle for _, handle in rewards], teachers=teachers)
    by_label = {role.label: role for role in roles}
    router = Router(
        rollouts,
        piece_size=config.rollout.max_num_seqs,
        attempts=config.rollout.attempts,
        restart=(lambda label: restarted(launcher, by_label[label])) if apart else None,
        restarts=config.launcher.restarts,
        keep=bool(guests),
        abandon=lambda label: launcher.stop(by_label[label]),
    )
    stack.callback(router.close)
    if not apart:
        return Placed(handles["actor-0"], router, [handle for _, handle in rewards], guests, _by_name(taught))
    revived = [
        RevivedRewards(role.label, handle, partial(restarted, launcher, role), config.launcher.restarts)
        for role, handle in rewards
    ]
    teaching = [
        (role, RevivedTeacher(role.label, handle, partial(restarted, launcher, role), config.launcher.restarts))
        for role, handle in taught
    ]
    return Placed(handles["actor-0"], router, revived, guests, _by_name(teaching))


def _by_name(taught: Sequence[tuple[Role, Teaching]]) -> dict[str, list[Teaching]]:
    workers: dict[str, list[Teaching]] = {}
    for role, handle in taught:
        workers.setdefault(str(role.arguments["teacher"]), []).append(handle)
    return workers


def restarted(launcher: Launcher, role: Role) -> Any:
    """A new handle for a role whose process is gone."""
    launcher.stop(role)
    return launcher.start(role)


def _exact(device: Device) -> str:
    """What names this very device to another process."""
    if not device.generation or device.name not in registry.names("device"):
        return device.name
    known = registry.spec("device", device.name).capabilities.get("generations", ())
    return f"{device.name}:{device.generation}" if device.generation in known else device.name


def _start_all(launcher: Launcher, roles: Sequence[Role]) -> dict[str, Any]:
    """Side by side: each loads a model. The actor's is loaded by this thread meanwhile; whoever shares a device with it
    comes after it, so that an engine which looks at what is free finds what will be. Where one cannot start, the others
    are not waited for."""
    mine = [role for role in roles if role.name in ("actor", "lent")]
    after = [role for role in roles if role.beside]
    others = [role for role in roles if role not in (*mine, *after)]
    with ThreadPoolExecutor(max(1, len(others) + len(after))) as threads:
        starting = {threads.submit(launcher.start, role): role for role in others}
        try:
            handles = {role.label: launcher.start(role) for role in mine}
            starting |= {threads.submit(launcher.start, role): role for role in after}
            return handles | {role.label: future.result() for future, role in starting.items()}
        except BaseException:  # the command is stopped, or one of them cannot start
            give_up(starting, launcher.stop)
            raise
