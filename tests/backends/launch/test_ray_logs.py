"""Workers' output: what a full disk or a file in the way does to it, without a cluster."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray")

from omni_backends.launch.ray import host as hosts  # noqa: E402
from omni_backends.launch.ray.logs import LogCollector  # noqa: E402
from omni_portable.contracts.errors import RunDirectoryError  # noqa: E402


class ApartWorker:
    """One that does not see the run directory; its log is `text`."""

    label = "rollout-0"

    def __init__(self, text: bytes) -> None:
        self.text = text

    def fetch(self, method: str, *arguments: Any, timeout_s: float | None = None) -> Any:
        return False if method == "open_log" else self.text[arguments[0] : arguments[0] + 4]


def opened(path: Path, text: bytes) -> LogCollector:
    collector = LogCollector()
    assert collector.open(ApartWorker(text), path, 60.0) is False  # type: ignore[arg-type]
    return collector


def test_output_comes_in_parts_and_once(tmp_path: Path) -> None:
    collector = opened(tmp_path / "logs" / "rollout-0.log", b"0123456789")
    collector.close()
    assert (tmp_path / "logs" / "rollout-0.log").read_bytes() == b"0123456789"
    assert [path.name for path in (tmp_path / "logs").iterdir()] == ["rollout-0.log"]


@pytest.mark.parametrize("blocked", ["logs", "logs/rollout-0.log"])
def test_a_file_in_the_way_is_named(tmp_path: Path, blocked: str) -> None:
    place = tmp_path / blocked
    if blocked == "logs":
        place.write_text("a file where the folder should be")
    else:
        place.mkdir(parents=True)
    with pytest.raises(RunDirectoryError, match=f"cannot write .*{blocked}"):
        opened(tmp_path / "logs" / "rollout-0.log", b"")


def test_a_disk_that_is_full_neither_ends_the_collector_nor_its_close(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    raised: list[Any] = []
    monkeypatch.setattr(threading, "excepthook", raised.append)
    path = tmp_path / "logs" / "rollout-0.log"
    collector = opened(path, b"0123456789")
    path.unlink()
    path.symlink_to("/dev/full")
    collector._fetch("rollout-0")
    path.unlink()
    collector.close()
    assert path.read_bytes() == b"0123456789"
    assert raised == []


def test_printing_in_a_worker_cannot_fail(tmp_path: Path) -> None:
    full = os.open("/dev/full", os.O_WRONLY)
    with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
        os.write(full, b"x")
    stream = hosts.printed(full)
    print("a scorer prints \ud800", file=stream, flush=True)
    target = os.open(tmp_path / "out", os.O_WRONLY | os.O_CREAT)
    print("a lone surrogate \ud800", file=hosts.printed(target))
    assert (tmp_path / "out").read_text() == "a lone surrogate \\ud800\n"
    os.close(full)
    os.close(target)


def test_a_log_is_read_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hosts, "LOG_PART", 4)
    host = hosts.Host()
    host._log = tmp_path / "log"
    host._log.write_bytes(b"0123456789")
    assert [host.read_log(start) for start in (0, 4, 8, 10)] == [b"0123", b"4567", b"89", b""]
