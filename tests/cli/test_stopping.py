"""SIGTERM and SIGHUP do what Ctrl-C does, whatever the command is doing."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from omni_portable.cli import main, stopping
from omni_portable.cli.stopping import stop_like_ctrl_c, stopped
from omni_portable.contracts.errors import WorkerLostError
from tests.support.processes import hear_signals

COMMAND = """
import os, signal, sys, time
from omni_portable.cli import doctor, main

def handle(arguments):
    arguments.resume_hint = "continue with: X"
    {setup}
    print("ready", flush=True)
    time.sleep(60)
    return 0

doctor.handle = handle
sys.exit(main(["doctor"]))
"""


def send(tmp_path: Path, number: signal.Signals, setup: str = "pass") -> subprocess.Popen[str]:
    """A command that was sent a signal while it worked, before it ends."""
    (tmp_path / "command.py").write_text(COMMAND.format(setup=setup))
    command = [sys.executable, str(tmp_path / "command.py")]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = subprocess.Popen(command, **pipes, text=True, preexec_fn=hear_signals)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(number)
    return process


@pytest.mark.parametrize(
    ("number", "code", "words"),
    [
        (signal.SIGTERM, 143, "stopped by SIGTERM. continue with: X"),
        (signal.SIGHUP, 129, "stopped by SIGHUP. continue with: X"),
        (signal.SIGINT, 130, "interrupted. continue with: X"),
    ],
)
def test_a_signal_ends_a_command_with_its_message(
    tmp_path: Path, number: signal.Signals, code: int, words: str
) -> None:
    process = send(tmp_path, number)
    _, said = process.communicate(timeout=60)
    assert (process.returncode, words in said, "Traceback" in said) == (code, True, False)


def test_where_ctrl_c_is_ignored_sigterm_is_not(tmp_path: Path) -> None:
    process = send(tmp_path, signal.SIGTERM, "signal.signal(signal.SIGINT, signal.SIG_IGN)")
    _, said = process.communicate(timeout=60)
    assert (process.returncode, "stopped by SIGTERM" in said) == (143, True)


LOOP = """signal.signal(signal.SIGINT, signal.SIG_IGN)
    import asyncio

    async def inner():
        while True:
            await asyncio.sleep(0)

    async def outer():
        tasks = [asyncio.ensure_future(inner()) for _ in range(4)]
        try:
            print("ready", flush=True)
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            print("cleaned up,", len(tasks), flush=True)

    asyncio.run(outer())"""


def test_where_ctrl_c_is_ignored_sigterm_cancels_the_tasks_of_a_loop(tmp_path: Path) -> None:
    process = send(tmp_path, signal.SIGTERM, LOOP)
    found, said = process.communicate(timeout=60)
    assert (process.returncode, found) == (143, "cleaned up, 4\n")
    assert "stopped by SIGTERM. continue with: X" in said
    assert "Traceback" not in said
    assert "never retrieved" not in said


def test_a_library_that_took_sigterm_over_changes_nothing(tmp_path: Path) -> None:
    process = send(tmp_path, signal.SIGTERM, "signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(number))")
    _, said = process.communicate(timeout=60)
    assert (process.returncode, "stopped by SIGTERM. continue with: X" in said) == (143, True)


def test_handlers_are_as_before_afterwards() -> None:
    with stop_like_ctrl_c() as end:
        assert callable(signal.getsignal(signal.SIGTERM))
        assert stopped() is end
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with stop_like_ctrl_c():
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN, "as nohup wants it"
    finally:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)


def test_a_thread_may_run_commands_too() -> None:
    codes: list[int] = []
    thread = threading.Thread(target=lambda: codes.append(main(["recipes"])))
    thread.start()
    thread.join(60)
    assert codes == [0]


def test_an_event_loop_cancels_its_task_and_cleans_up() -> None:
    tidied = []

    async def work() -> None:
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0)
            tidied.append(True)

    with stop_like_ctrl_c() as end, pytest.raises(KeyboardInterrupt):
        asyncio.run(work())
    assert (tidied, end.exit_code) == ([True], 143)


def test_work_that_cannot_be_cancelled_is_broken_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stopping, "PATIENCE_S", 0.2)

    async def work() -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        begun = time.monotonic()
        while time.monotonic() - begun < 60.0:  # as an update that computes for minutes
            time.sleep(0.01)

    begun = time.monotonic()
    with stop_like_ctrl_c(), pytest.raises(KeyboardInterrupt):
        asyncio.run(work())
    assert time.monotonic() - begun < 50.0


def test_a_thread_of_the_loop_that_does_not_end_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stopping, "PATIENCE_S", 0.2)
    held = threading.Event()

    async def work() -> None:
        asyncio.get_running_loop().call_later(0.1, os.kill, os.getpid(), signal.SIGTERM)
        await asyncio.to_thread(held.wait, 60.0)

    begun = time.monotonic()
    with stop_like_ctrl_c(), pytest.raises(KeyboardInterrupt):
        asyncio.run(work())
    assert time.monotonic() - begun < 50.0, "as where another process is waited for, which cleaning up then ends"
    held.set()


def test_clean_up_is_not_broken_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stopping, "PATIENCE_S", 0.1)

    async def work() -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.sleep(60)

    done = False
    with stop_like_ctrl_c():
        with pytest.raises(KeyboardInterrupt):
            asyncio.run(work())
        time.sleep(0.5)
        done = True
    assert done


def test_an_error_that_the_signal_caused_is_not_shown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A scheduler sends SIGTERM to all processes of a job: workers may be gone before the driver notices."""
    for error in (WorkerLostError("the worker is gone"), BrokenPipeError(), EOFError("no answer")):

        def handle(arguments: object, error: Exception = error) -> int:
            end = stopped()
            end.by = signal.SIGTERM
            raise error

        monkeypatch.setattr("omni_portable.cli.doctor.handle", handle)
        assert main(["doctor"]) == 143
        shown = capsys.readouterr().err
        assert "stopped by SIGTERM" in shown
        assert str(error) not in shown or not str(error)


def test_an_error_that_stopped_a_run_is_followed_by_how_to_continue(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for stopped_run in (True, False):

        def handle(arguments: object, stopped_run: bool = stopped_run) -> int:
            arguments.resume_hint = "continue with: X"  # type: ignore[attr-defined]
            error = WorkerLostError("the worker is gone")
            error.stopped_run = stopped_run
            raise error

        monkeypatch.setattr("omni_portable.cli.doctor.handle", handle)
        assert main(["doctor"]) == 1
        assert ("continue with: X" in capsys.readouterr().err) is stopped_run
