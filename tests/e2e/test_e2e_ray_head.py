"""The head of a Ray cluster that is killed under a run: the command says so in time, and the run goes on afterwards."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import psutil
import pytest

from tests.e2e.conftest import COMMON
from tests.e2e.rundirs import differences, equal_tensors, logged, metrics, worker
from tests.e2e.watching import command, descendants, ended, wait_for

pytest.importorskip("ray")
pytestmark = pytest.mark.ray

RAY = (*COMMON, "launcher.name=ray")
HEAD_PATIENCE_S = 300.0
"""For a command to end after the head of its cluster was killed."""


def test_a_run_whose_own_cluster_loses_its_head_ends_and_is_resumed(
    whole: Path, workshop: Path, train, tmp_path: Path
) -> None:
    """It waits for a worker that does not answer when the head dies. Resumed in one process: where roles run may
    change."""
    run_dir, log = tmp_path / "run", tmp_path / "output"
    argv = [sys.executable, "-m", "omni_portable.cli", "train", str(workshop / "recipe.yaml")]
    with command([*argv, *RAY, f"trainer.run_dir={run_dir}"], log) as first:
        wait_for(lambda: logged(run_dir) >= 4 or first.poll() is not None, "step 3")
        os.kill(worker(run_dir, "rollout-0"), signal.SIGSTOP)
        (head,) = descendants(first.pid, "gcs_server")
        started = psutil.Process(first.pid).children(recursive=True)
        head.kill()
        said = ended(first, log, HEAD_PATIENCE_S)
    assert "the head of the Ray cluster at 127.0.0.1:" in said
    assert "run the same command with --resume" in said
    assert "trainer.resume=auto" in said
    psutil.wait_procs(started, timeout=60)
    assert [process for process in started if process.is_running()] == [], "what it started is gone too"
    outcome = train(run_dir, *COMMON, "trainer.resume=auto")
    assert outcome.code == 0, outcome.err
    assert "continuing" in (run_dir / "log.txt").read_text()
    assert differences(metrics(whole), metrics(run_dir)) == []
    assert equal_tensors(whole / "export", run_dir / "export")


CLUSTER = """
import sys, time
from omni_backends.launch.ray import RayOptions
from omni_backends.launch.ray.cluster import connect
print(connect(RayOptions(object_store_mib=128), 8).address, flush=True)
time.sleep(1e6)
"""


@pytest.mark.parametrize("victim", ["raylet", "gcs_server"])
def test_a_run_that_joined_a_cluster_ends_when_its_head_dies(victim: str, workshop: Path, tmp_path: Path) -> None:
    run_dir, log, address = tmp_path / "run", tmp_path / "output", tmp_path / "address"
    token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(tmp_path / "token")}
    (tmp_path / "token").write_text("4" * 64)
    with pytest.MonkeyPatch.context() as environment:
        for name, value in token.items():
            environment.setenv(name, value)
        with command([sys.executable, "-c", CLUSTER], address) as owner:
            wait_for(lambda: address.read_text().startswith("127.") or owner.poll() is not None, "the cluster")
            argv = [sys.executable, "-m", "omni_portable.cli", "train", str(workshop / "recipe.yaml"), *RAY]
            argv += [f"trainer.run_dir={run_dir}", f"launcher.options.address={address.read_text().split()[0]}"]
            with command([*argv, "trainer.mode=separate_async", "dataplane.max_staleness=1"], log) as run:
                wait_for(lambda: logged(run_dir) >= 2 or run.poll() is not None, "step 1")
                os.kill(worker(run_dir, "rollout-0"), signal.SIGSTOP)
                (head,) = descendants(owner.pid, victim)
                head.kill()
                said = ended(run, log, HEAD_PATIENCE_S)
    assert "the Ray cluster at 127.0.0.1:" in said
    assert "start the cluster again" in said
    assert "--resume" in said
