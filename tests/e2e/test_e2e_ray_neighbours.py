"""Three runs at the same time: two joined to one cluster, the third with one of its own. None notices the others."""

from __future__ import annotations

import os
import re
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.e2e.conftest import COMMON
from tests.e2e.rundirs import differences, equal_tensors, metrics, worker
from tests.e2e.watching import PATIENCE_S, command, wait_for
from tests.support.processes import assert_gone

ray = pytest.importorskip("ray")
pytest.importorskip("transfer_queue")
pytestmark = pytest.mark.ray

RUN = (*COMMON, "launcher.name=ray", "dataplane.name=transferqueue", "dataplane.options.storage_units=1")
OTHER = "trainer.seed=7"
LABELS = ("rollout-0", "reward-0")


def test_runs_at_the_same_time_are_as_runs_alone(
    cluster, whole: Path, workshop: Path, train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the two that share a cluster one runs in this process; they have another seed, so that nothing of one can pass
    for something of the other."""
    free = ray.available_resources()["CPU"]
    alone = tmp_path / "alone"
    outcome = train(alone, *COMMON, OTHER)
    assert outcome.code == 0, outcome.err
    here, joined, apart = (tmp_path / name for name in ("here", "joined", "apart"))
    argv = [sys.executable, "-m", "omni_portable.cli", "train", str(workshop / "recipe.yaml"), *RUN]
    token = tmp_path / "token"
    token.write_text(os.environ["RAY_AUTH_TOKEN"])
    with ExitStack() as stack:
        own = stack.enter_context(command([*argv, OTHER, f"trainer.run_dir={apart}"], tmp_path / "apart.log"))
        with monkeypatch.context() as environment:
            environment.setenv("RAY_AUTH_TOKEN_PATH", str(token))
            address = f"launcher.options.address={cluster.address}"
            other = stack.enter_context(
                command([*argv, OTHER, address, f"trainer.run_dir={joined}"], tmp_path / "joined.log")
            )
        outcome = train(here, *RUN)
        assert outcome.code == 0, outcome.err
        for process, log in ((own, tmp_path / "apart.log"), (other, tmp_path / "joined.log")):
            assert process.wait(PATIENCE_S) == 0, log.read_text()
    for run_dir, expected in ((here, whole), (joined, alone), (apart, alone)):
        assert differences(metrics(expected), metrics(run_dir)) == [], run_dir
        assert equal_tensors(expected / "export", run_dir / "export")
    workers = {run_dir: {label: worker(run_dir, label) for label in LABELS} for run_dir in (here, joined, apart)}
    assert len({pid for found in workers.values() for pid in found.values()}) == 6
    for run_dir, found in workers.items():
        for label, pid in found.items():
            said = (run_dir / "logs" / f"{label}.log").read_text()
            assert re.findall(r"is ready in process (\d+)", said) == [str(pid)], "its own output, and only that"
    ports = [set(re.findall(r"listening: .*:(\d+)$", (apart / "log.txt").read_text(), re.M)), _ports(cluster)]
    assert ports[0]
    assert not ports[0] & ports[1]
    assert_gone([pid for found in workers.values() for pid in found.values()])
    wait_for(lambda: ray.available_resources()["CPU"] == free, "what was set aside to be given back")


def _ports(cluster: object) -> set[str]:
    return {listener.rpartition(":")[2] for listener in cluster.listeners}  # type: ignore[attr-defined]
