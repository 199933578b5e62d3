"""The log file of a run."""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from omni_portable.contracts.disk import disk_errors

LOGGERS = ("omni_portable", "omni_backends", "omni_devices")
"""Names of the packages that log."""
MOST = 20
"""Warnings that one run says on the console."""
FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"

log = logging.getLogger(__name__)


class LogFile(logging.Handler):
    """Appends to a file, one unbuffered write per record.

    A record that cannot be written (the disk is full) is counted and reported with the next one that can: a log must
    neither stop a run nor stand in front of the error that stopped it.
    """

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.setFormatter(logging.Formatter(FORMAT))
        self._lost = 0
        self._path = path
        with disk_errors(path):
            self._file = self._opened()

    def _opened(self) -> BinaryIO:
        return open(self._path, "ab", buffering=0)  # noqa: SIM115 - held until close

    def emit(self, record: logging.LogRecord) -> None:
        note = f"({self._lost} records before this one could not be written)\n" if self._lost else ""
        try:
            if self._file.closed:  # a library that configures logging closes every handler there is
                self._file = self._opened()
            self._file.write(f"{note}{self.format(record)}\n".encode())
            self._lost = 0
        except OSError:
            self._lost += 1

    def close(self) -> None:
        self._file.close()
        super().close()


class Console(logging.Handler):
    """Says on standard error what a person should know while the run goes on: its warnings, such as a lost worker.
    Errors end a run, and are said then.

    Args:
        path: of the log file, which has the rest.
    """

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path, self._said = path, 0

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno != logging.WARNING or self._said > MOST:
            return
        self._said += 1
        more = self._said > MOST
        text = f"further warnings are in {self._path} only" if more else f"warning: {record.getMessage()}"
        with contextlib.suppress(OSError):  # nobody reads it any more
            print(text, file=sys.stderr, flush=True)


@contextmanager
def log_to(path: Path, console: bool = False) -> Iterator[None]:
    """Write what the package logs to a file while the context is open, and the traceback of what ends it.

    Args:
        console: say the warnings on standard error, too.
    """
    handler = LogFile(path)
    loggers = [logging.getLogger(name) for name in LOGGERS]
    said = Console(path) if console else logging.NullHandler()
    for logger in loggers:
        logger.addHandler(handler)
        logger.addHandler(said)
        logger.setLevel(logging.INFO)
    try:
        yield
    except BaseException:
        log.exception("the run stopped")
        raise
    finally:
        for logger in loggers:
            logger.removeHandler(handler)
            logger.removeHandler(said)
        handler.close()
