"""Output of the workers, one file per worker in the run directory."""

from __future__ import annotations

import logging
import os
import threading
import uuid
from dataclasses import dataclass
from pathlib import Path

from omni_backends.launch.ray.worker import Worker
from omni_portable.contracts.disk import disk_errors
from omni_portable.contracts.errors import OmniPortableError

log = logging.getLogger(__name__)
INTERVAL_S = 2.0


@dataclass
class _Source:
    """A worker whose output is fetched, and how many bytes of it were."""

    worker: Worker
    path: Path
    done: int = 0


class LogCollector:
    """Workers that share the run directory write there themselves; the output of others is fetched now and then."""

    def __init__(self) -> None:
        self._sources: dict[str, _Source] = {}
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    def open(self, worker: Worker, path: Path, timeout_s: float) -> bool:
        """Have a worker's output appended to `path` from now on; whether it sees that folder.

        Args:
            timeout_s: for the answer, which comes when the worker's process has started.

        Raises:
            RunDirectoryError: the file cannot be written.
        """
        proof = path.parent / f".{uuid.uuid4().hex}"
        with disk_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            os.close(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666))
            proof.touch()
        try:
            shared: bool = worker.fetch("open_log", str(path.absolute()), str(proof.absolute()), timeout_s=timeout_s)
        finally:
            proof.unlink(missing_ok=True)
        if shared:
            return True
        with self._lock:
            self._sources[worker.label] = _Source(worker, path)
            if self._thread is None:
                self._thread = threading.Thread(target=self._watch, name="worker logs", daemon=True)
                self._thread.start()
        return False

    def release(self, label: str) -> None:
        """Fetch what is left of one worker, which is about to end."""
        with self._lock:
            if label in self._sources:
                self._fetch(label)
                self._sources.pop(label, None)

    def close(self) -> None:
        """Fetch once more, and no more."""
        self._closed.set()
        if self._thread is not None:
            self._thread.join()
        for label in list(self._sources):
            self.release(label)

    def _watch(self) -> None:
        while not self._closed.wait(INTERVAL_S):
            with self._lock:
                for label in list(self._sources):
                    self._fetch(label)

    def _fetch(self, label: str) -> None:
        """What is new; what cannot be written now (the disk is full) is fetched again the next time."""
        source = self._sources[label]
        try:
            new = source.worker.fetch("read_log", source.done)
            with open(source.path, "ab", buffering=0) as file:
                while new:
                    written = file.write(new)
                    source.done += written
                    new = new[written:] or source.worker.fetch("read_log", source.done)
        except OmniPortableError as error:
            log.info("the output of '%s' is no longer fetched: %s", label, error.problem)
            del self._sources[label]
        except OSError as error:
            log.info("the output of '%s' cannot be written to %s now: %s", label, source.path, error.strerror)
