"""A cluster of a head and two machines, and a command on a fourth that joins from outside."""

from __future__ import annotations

import re
import secrets
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.e2e.rundirs import differences, equal_tensors, logged, metrics
from tests.e2e.test_e2e_ray_shared import RANKS
from tests.e2e.watching import wait_for
from tests.support.machines import Machine, machines

pytest.importorskip("ray")
pytestmark = pytest.mark.ray

BOTH = ("launcher.name=ray", "launcher.options.placement=strict_spread", "rollout.replicas=2")
PATIENCE_S = 600.0


@dataclass(frozen=True)
class Cluster:
    """Of `head`, where no workers run, and `members`; `outside` only has a network."""

    head: Machine
    members: tuple[Machine, Machine]
    outside: Machine
    environment: Mapping[str, str]

    def train(self, machine: Machine, recipe: Path, run_dir: Path, *overrides: str) -> subprocess.Popen[bytes]:
        argv = [sys.executable, "-m", "omni_portable.cli", "train", str(recipe), f"trainer.run_dir={run_dir}"]
        return machine.start([*argv, *BOTH, *overrides], run_dir.with_suffix(".out"), self.environment)


@pytest.fixture(scope="module")
def far(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("machines")
    token = folder / "token"
    token.write_text(secrets.token_hex(32))
    token.chmod(0o600)
    environment = {
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": str(token),
        "RAY_AUTH_TOKEN": "",
        "RAY_ADDRESS": "",
        "GRPC_ENABLE_FORK_SUPPORT": "0",
    }
    with machines(4) as (head, one, two, outside):
        ports = ["--port=6379", "--ray-client-server-port=10001", "--include-dashboard=false"]
        _start_ray(head, folder, environment, "--head", "--num-cpus=0", *ports)
        for member in (one, two):
            _start_ray(member, folder, environment, "--num-cpus=3", f"--address={head.address}:6379")
        yield Cluster(head, (one, two), outside, environment)


def _start_ray(machine: Machine, folder: Path, environment: Mapping[str, str], *arguments: str) -> None:
    """Ray gives a node half a minute to come up, which a busy machine may not do at once."""
    log = folder / f"ray-{machine.address}.out"
    common = [f"--node-ip-address={machine.address}", "--object-store-memory=200000000"]
    for _ in range(3):
        argv = [sys.executable, "-m", "ray.scripts.scripts", "start", *arguments, *common]
        if machine.start(argv, log, environment).wait(PATIENCE_S) == 0:
            return
        stop = [sys.executable, "-m", "ray.scripts.scripts", "stop", "--force"]
        machine.start(stop, log, environment).wait(PATIENCE_S)
    pytest.fail(f"Ray did not start on {machine.address}:\n{log.read_text()}")


def places(run_dir: Path) -> list[tuple[str, str]]:
    """(role, address) of every worker that was started, in order."""
    return re.findall(r"'(\S+)' runs in process \d+ on (\S+)", (run_dir / "log.txt").read_text())


def test_ranks_and_replicas_on_two_machines_train_what_one_trains(far: Cluster, workshop, train, tmp_path: Path):
    """The command is on a machine that is no part of the cluster; groups wait in storage processes of both."""
    one, run_dir = tmp_path / "one", tmp_path / "run"
    outcome = train(one, *RANKS)
    assert outcome.code == 0, outcome.err
    address = f"launcher.options.address=ray://{far.head.address}:10001"
    process = far.train(far.outside, workshop / "recipe.yaml", run_dir, *RANKS, address, "dataplane.name=transferqueue")
    assert process.wait(PATIENCE_S) == 0, run_dir.with_suffix(".out").read_text()
    assert differences(metrics(one), metrics(run_dir)) == []
    assert equal_tensors(one / "export", run_dir / "export")
    for role in ("actor", "rollout"):
        assert {at for label, at in places(run_dir) if label.startswith(role)} == {m.address for m in far.members}


def test_a_run_outlives_the_machine_of_its_reward_and_a_replica(far: Cluster, workshop, train, tmp_path: Path):
    """What was lost with it is drawn and scored again on the other."""
    steps = ("rollout.max_num_seqs=2", "trainer.total_steps=30", "trainer.save_interval=10")
    one, run_dir = tmp_path / "one", tmp_path / "run"
    outcome = train(one, *steps)
    assert outcome.code == 0, outcome.err
    address = f"launcher.options.address={far.head.address}:6379"
    process = far.train(far.head, workshop / "recipe.yaml", run_dir, *steps, address)
    wait_for(lambda: logged(run_dir) > 2 or process.poll() is not None, "two steps")
    (lost,) = [machine for machine in far.members if ("reward-0", machine.address) in places(run_dir)]
    lost.power_off()
    assert process.wait(PATIENCE_S) == 0, run_dir.with_suffix(".out").read_text()
    assert differences(metrics(one), metrics(run_dir)) == []
    assert equal_tensors(one / "export", run_dir / "export")
    (first, again) = [at for label, at in places(run_dir) if label == "reward-0"]
    assert (first, again) == (lost.address, next(m.address for m in far.members if m is not lost))
    assert re.search(r"the process of 'rollout-\d' is gone", (run_dir / "log.txt").read_text())
