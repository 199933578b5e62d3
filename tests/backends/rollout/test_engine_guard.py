"""Processes of an engine end, and its folders go, however their owner ends."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from omni_backends.rollout.external.guard import Guard, marked
from tests.support.sync_worker import ROOT

OWNER = """
import os, subprocess, sys
from pathlib import Path
from omni_backends.rollout.external.guard import Guard

guard = Guard()
guard.remove_too(Path(sys.argv[1]))
nested = "import subprocess, sys; subprocess.Popen(['sleep', '600']); sys.stdin.read()"
child = subprocess.Popen([sys.executable, "-c", nested], env={**os.environ, **guard.variables}, stdin=subprocess.PIPE)
print(guard._mark, guard.folder, flush=True)
sys.stdin.read()
"""


def wait_for(condition: object, seconds: float = 60.0) -> bool:
    assert callable(condition)
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.05)
    return bool(condition())


def test_after_kill_9_of_the_owner_nothing_is_left(tmp_path: Path) -> None:
    made = tmp_path / "made"
    made.mkdir()
    (made / "file").write_text("x")
    owner = subprocess.Popen([sys.executable, "-c", OWNER, str(made)], cwd=ROOT, stdin=-1, stdout=-1, text=True)
    assert owner.stdout is not None
    mark, folder = owner.stdout.readline().split()
    assert wait_for(lambda: len(list(marked(mark))) == 2), "the child, and its own child"
    assert Path(folder).is_dir()
    assert made.is_dir()
    owner.kill()
    owner.communicate()
    assert wait_for(lambda: not list(marked(mark)))
    assert wait_for(lambda: not made.exists() and not Path(folder).exists())


def test_processes_of_an_engine_leave_the_terminals_group_and_nobody_else_does() -> None:
    asked = "import os; from omni_backends.rollout.external.guard import leave_the_terminal as leave; leave(); leave()"
    program = [sys.executable, "-c", f"{asked}; print(os.getpgrp() == os.getpid())"]
    guard = Guard()
    try:
        for variables, alone in (guard.variables, "True"), ({}, "False"):
            environment = {**os.environ, **variables}
            assert subprocess.check_output(program, cwd=ROOT, env=environment, text=True).strip() == alone
    finally:
        guard.close()


@pytest.mark.parametrize("killed", [False, True])
def test_closing_ends_what_is_left_also_where_the_guard_was_ended(killed: bool) -> None:
    guard = Guard()
    child = subprocess.Popen(["sleep", "600"], env={**os.environ, **guard.variables})
    if killed:
        guard._process.kill()
        guard._process.wait()
        guard.remove_too(Path("/nowhere"))
    guard.close()
    guard.close()
    assert child.wait(10) == -9
    assert not guard.folder.exists()
    assert os.getpid() not in marked(guard._mark)


def test_shared_memory_of_workers_that_met_in_the_folder_goes_with_it() -> None:
    guard = Guard()
    name = f"vllm_dist_{guard._mark}"
    (guard.folder / name).touch()
    shared = [Path(f"/dev/shm/{name}-tp:0-[0-1]-cpushm_{rank}") for rank in range(2)]
    for path in shared:
        path.write_bytes(b"x")
    guard.close()
    assert not any(path.exists() for path in shared)


def test_a_long_temporary_folder_leaves_room_for_the_paths_of_sockets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deep = tmp_path / ("x" * 60)
    deep.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(deep))
    guard = Guard()
    guard.close()
    assert len(f"{guard.folder}/{'x' * 36}") < 107
