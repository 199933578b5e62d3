"""The log file, and rows of metrics, on a disk that runs full."""

from __future__ import annotations

import json
import logging
import logging.config
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from omni_portable.contracts.errors import RunDirectoryError
from omni_portable.trainer.loggers.jsonl import JsonlLogger
from omni_portable.trainer.loggers.values import LoggerOptions
from omni_portable.trainer.runlog import MOST, LogFile, log_to

LOG = logging.getLogger("omni_portable.somewhere")


@contextmanager
def files_end_at(size: int) -> Iterator[None]:
    """No file may grow beyond `size` bytes; a write that crosses it is cut short, the next one fails."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_what_the_package_logs_is_appended(tmp_path: Path) -> None:
    (tmp_path / "log.txt").write_text("earlier\n")
    with log_to(tmp_path / "log.txt"):
        LOG.info("continuing %s", "step 3")
    LOG.info("not any more")
    earlier, line = (tmp_path / "log.txt").read_text().splitlines()
    assert earlier == "earlier"
    assert line.endswith("INFO omni_portable.somewhere: continuing step 3")


def test_the_console_says_warnings_and_not_too_many(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with log_to(tmp_path / "log.txt", console=True):
        LOG.info("'rollout-0' runs")
        LOG.warning("%s is started again", "'rollout-0'")
        LOG.error("the run stops, which is said elsewhere")
        for number in range(MOST + 5):
            LOG.warning("again %d", number)
    LOG.warning("not any more")
    out, err = capsys.readouterr()
    lines = err.splitlines()
    assert (out, lines[0], lines[1]) == ("", "warning: 'rollout-0' is started again", "warning: again 0")
    assert lines[MOST:] == [f"further warnings are in {tmp_path}/log.txt only"]
    assert len((tmp_path / "log.txt").read_text().splitlines()) == MOST + 8


def test_the_traceback_of_what_ended_the_run_is_kept(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), log_to(tmp_path / "log.txt"):
        1 / 0  # noqa: B018
    text = (tmp_path / "log.txt").read_text()
    assert "the run stopped" in text
    assert "ZeroDivisionError" in text


def test_a_library_that_configures_logging_does_not_end_the_log(tmp_path: Path) -> None:
    with log_to(tmp_path / "log.txt"):
        LOG.info("before")
        logging.config.dictConfig({"version": 1, "disable_existing_loggers": False})
        LOG.info("after")
    lines = (tmp_path / "log.txt").read_text().splitlines()
    assert [line.rpartition(": ")[2] for line in lines] == ["before", "after"]


def test_a_full_disk_neither_raises_nor_prints(capsys: pytest.CaptureFixture[str]) -> None:
    with log_to(Path("/dev/full")):
        LOG.warning("nobody can write this")
    assert capsys.readouterr() == ("", "")


def test_lost_records_are_counted(tmp_path: Path) -> None:
    handler = LogFile(tmp_path / "log.txt")
    record = logging.LogRecord("omni_portable.x", logging.INFO, "", 0, "line", (), None)
    with files_end_at(0):
        handler.emit(record)
        handler.emit(record)
    handler.emit(record)
    handler.emit(record)
    handler.close()
    lines = (tmp_path / "log.txt").read_text().splitlines()
    assert lines[0] == "(2 records before this one could not be written)"
    assert [line.rpartition(": ")[2] for line in lines[1:]] == ["line", "line"]


def test_a_log_that_cannot_be_opened_is_named(tmp_path: Path) -> None:
    (tmp_path / "log.txt").mkdir()
    with pytest.raises(RunDirectoryError, match=r"cannot write.*log\.txt"):
        LogFile(tmp_path / "log.txt")


def test_a_row_of_metrics_is_whole_or_absent_and_closing_does_not_fail_again(tmp_path: Path) -> None:
    logger = JsonlLogger(LoggerOptions(), tmp_path)
    logger.log(1, {"reward/mean": 0.5})
    size = (tmp_path / "metrics.jsonl").stat().st_size
    with files_end_at(size + 7):
        with pytest.raises(RunDirectoryError, match=r"cannot write.*metrics\.jsonl"):
            logger.log(2, {"reward/mean": 0.25})
        assert (tmp_path / "metrics.jsonl").stat().st_size == size, "no torn row"
        logger.close()
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert rows == [{"step": 1, "reward/mean": 0.5}]
