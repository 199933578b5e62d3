"""Ranks of a train engine as Ray actors: the numbers of one process, and what happens when one of them ends."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

ray = pytest.importorskip("ray")

from omni_backends.launch.ray import RayOptions  # noqa: E402
from omni_backends.launch.ray.cluster import is_loopback  # noqa: E402
from omni_backends.launch.ray.launcher import RayLauncher  # noqa: E402
from omni_backends.launch.ray.logs import LogCollector  # noqa: E402
from omni_backends.launch.ray.tensors import FIELDS, Bundle, Outgoing  # noqa: E402
from omni_backends.training.fsdp2.engine import Fsdp2TrainEngine  # noqa: E402
from omni_backends.training.fsdp2.failure import RankError  # noqa: E402
from omni_backends.training.single.engine import SingleTrainEngine  # noqa: E402
from omni_portable.contracts.algorithm import TrainBatch  # noqa: E402
from omni_portable.contracts.errors import ClusterError, LifecycleError  # noqa: E402
from omni_portable.contracts.launcher import Role  # noqa: E402
from tests.backends.training.fsdp2.blocks import RAISE, blocks_batch, blocks_plugin, blocks_setup  # noqa: E402
from tests.backends.training.toy import ToyAlgorithm  # noqa: E402
from tests.support.processes import assert_gone  # noqa: E402

pytestmark = pytest.mark.ray
LIMIT_S = 30.0
ENTRY = "tests.backends.training.fsdp2.blocks:build_engine"


@pytest.fixture(scope="module", autouse=True)
def plugin(tmp_path_factory: pytest.TempPathFactory):
    with blocks_plugin(tmp_path_factory.mktemp("plugin")) as folder:
        yield folder


@pytest.fixture
def launcher(cluster):
    made = RayLauncher(RayOptions())
    yield made
    made.shutdown()


def actor(plugin: Path, log: Path | None = None, world: int = 2, **options) -> Role:
    """An actor of the toy family, which its processes find by their PYTHONPATH."""
    path = os.pathsep.join([str(plugin), str(Path.cwd()), *sys.path])
    environment = {"PYTHONPATH": path, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    here = {"setup": blocks_setup(world=world, **options)}
    config = {"device": {"name": "cpu"}}
    return Role("actor", ENTRY, config, here=here, environment=environment, log=log, ranks=world)


def start(launcher: RayLauncher, role: Role) -> Fsdp2TrainEngine:
    launcher.reserve([role])
    return launcher.start(role)


def stored(batch: TrainBatch) -> TrainBatch:
    """With the tensors of its samples in the object store, from where this process may not fetch them."""

    def never(reference: object) -> None:
        raise AssertionError("a tensor came to the driver")

    trajectories = []
    for trajectory in batch.trajectories:
        outgoing = Outgoing()
        thin = {name: outgoing.add(getattr(trajectory, name)) for name in FIELDS}
        thin["conditioning"] = {name: outgoing.add(tensor) for name, tensor in trajectory.conditioning.items()}
        bundle = Bundle(ray.put(outgoing.parts), never)
        for tensor in (*thin["conditioning"].values(), *(thin[name] for name in FIELDS)):
            tensor.source = bundle
        trajectories.append(replace(trajectory, **thin))
    return replace(batch, trajectories=trajectories)


def train_for(engine: Fsdp2TrainEngine, seconds: float) -> None:
    started = time.monotonic()
    while time.monotonic() - started < seconds:
        engine.train_step(blocks_batch(8), ToyAlgorithm())


def listening(pids: list[int]) -> set[str]:
    found = [one for pid in pids for one in psutil.Process(pid).net_connections("tcp")]
    return {one.laddr.ip for one in found if one.status == psutil.CONN_LISTEN}


def test_the_numbers_of_one_process_and_of_children(launcher, plugin, tmp_path: Path):
    log = tmp_path / "logs" / "actor-0.log"
    ranks = start(launcher, actor(plugin, log))
    one, children = SingleTrainEngine(blocks_setup(world=1)), Fsdp2TrainEngine(blocks_setup())
    try:
        for step in range(3):
            batch = blocks_batch(9, seed=step)
            theirs, alone = children.train_step(batch, ToyAlgorithm()), one.train_step(batch, ToyAlgorithm())
            ours = ranks.train_step(stored(batch) if step else batch, ToyAlgorithm())
            assert ours.metrics == theirs.metrics
            assert ours.metrics == pytest.approx(alone.metrics, rel=1e-6, abs=1e-6)
        assert ranks.weights_checksum() == children.weights_checksum()
    finally:
        children.close()
    folder = tmp_path / "saved"
    folder.mkdir()
    ranks.save(folder)
    kept = ranks.weights_checksum()
    ranks.train_step(blocks_batch(4), ToyAlgorithm())
    ranks.load(folder)
    assert ranks.weights_checksum() == kept
    assert len(set(ranks.pids)) == 2
    assert os.getpid() not in ranks.pids
    assert {ip for ip in listening(list(ranks.pids)) if not is_loopback(ip)} == set()
    assert sorted(path.name for path in log.parent.iterdir()) == ["actor-0.log", "actor-1.log"]
    pids = list(ranks.pids)
    launcher.shutdown()
    assert_gone(pids)


def test_a_rank_that_is_killed_or_fails_ends_the_others_and_is_named(launcher, plugin):
    engine = start(launcher, actor(plugin))
    batch = blocks_batch(8)
    engine.train_step(batch, ToyAlgorithm())
    threading.Timer(0.2, os.kill, (engine.pids[1], signal.SIGKILL)).start()
    started = time.monotonic()
    found = r"rank 1 of 2 \('actor-1', pid \d+ on [\d.]+\) of .* was lost .* gone"
    with pytest.raises(RankError, match=found) as caught:
        train_for(engine, LIMIT_S)
    assert time.monotonic() - started < LIMIT_S
    assert "trainer.resume=auto" in caught.value.remedy
    assert_gone(engine.pids)
    with pytest.raises(LifecycleError, match="its ranks were stopped because rank 1 of 2"):
        engine.log_probs(batch)
    role = actor(plugin)
    launcher.stop(role)
    again = launcher.start(role)
    batch.trajectories[6].latents[:, 0, 0, 0] = RAISE
    with pytest.raises(RankError, match=r"rank 1 of 2 .*ArithmeticError: a sample that nobody can score"):
        again.train_step(batch, ToyAlgorithm())
    assert_gone(list(again.pids))


def test_ranks_that_do_not_see_the_run_directory_are_refused(launcher, plugin, tmp_path: Path, monkeypatch):
    monkeypatch.setattr(LogCollector, "open", lambda self, worker, path, timeout_s: False)
    with pytest.raises(ClusterError, match=r"1 of 1 ranks .* do not see the run directory \(first 'actor-0', pid"):
        start(launcher, actor(plugin, tmp_path / "logs" / "actor-0.log", world=1))


def test_what_ranks_raise_while_they_are_built_arrives_as_it_is(launcher, plugin):
    role = actor(plugin, world=1)
    config = role.here["setup"].config
    config.model.lora.rank, config.model.lora.targets = 2, ["nothing_like_this"]
    with pytest.raises(Exception, match="'nothing_like_this' matches no module") as caught:
        start(launcher, role)
    assert type(caught.value).__name__ == "ConfigError"
