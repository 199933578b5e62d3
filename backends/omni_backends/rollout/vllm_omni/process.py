"""A running vLLM-Omni in a process of its own, and calls to it. Nothing of vLLM is loaded into this program."""

from __future__ import annotations

import asyncio
import concurrent.futures
import itertools
import logging
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from omni_backends.rollout.external.guard import Guard
from omni_backends.rollout.vllm_omni.wire import HEADER, body_length, decode, encode
from omni_portable.contracts.errors import EngineEndedError, LifecycleError

LOG = logging.getLogger(__name__)
SERVER = "omni_backends.rollout.vllm_omni.server"
Future = concurrent.futures.Future[Any]


class OmniProcess:
    """vLLM-Omni from start to end.

    Args:
        arguments: of `AsyncOmni`, plain values.
        environment: variables of the process, all of them.
        start_timeout_s / call_timeout_s: see `VllmOmniOptions`.

    Raises:
        LifecycleError: it did not start.
    """

    def __init__(
        self,
        arguments: Mapping[str, Any],
        environment: Mapping[str, str],
        start_timeout_s: float,
        call_timeout_s: float,
    ) -> None:
        self._timeout_s = call_timeout_s
        self._ids = itertools.count(1)
        self._waiting: dict[int, Future] = {0: Future()}
        self._drawing: dict[str, Future] = {}
        self._lock = threading.Lock()
        self._closed = False
        started, ready = time.perf_counter(), self._waiting[0]
        ours, theirs = socket.socketpair()
        self._socket = ours
        self._guard = Guard()
        with theirs:
            command = [sys.executable, "-m", SERVER, str(theirs.fileno())]
            self._process = subprocess.Popen(  # noqa: S603
                command,
                pass_fds=[theirs.fileno()],
                env={**environment, **self._guard.variables},
                start_new_session=True,  # the terminal's Ctrl-C is for this program, which ends the engine in order
            )
        self._reader = threading.Thread(target=self._read, name="omni-portable-vllm-omni", daemon=True)
        self._reader.start()
        try:
            self._socket.sendall(encode(arguments))
            ready.result(start_timeout_s)
        except BaseException as error:
            self._process.kill()
            self.close()
            if not isinstance(error, Exception):
                raise
            reason = error.problem if isinstance(error, LifecycleError) else repr(error)
            raise LifecycleError(
                f"the rollout engine 'vllm_omni' did not start: {reason:.1500}",
                remedy="set the environment variable VLLM_LOGGING_LEVEL=INFO and read the engine's own messages",
            ) from error
        self.start_seconds = time.perf_counter() - started
        LOG.info("vLLM-Omni started in %.1f s as process %d", self.start_seconds, self.process_id)

    @property
    def process_id(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        return not self._closed and self._process.poll() is None

    def ended(self, during: str) -> EngineEndedError:
        """What is known of the process, which has ended."""
        try:
            code: int | None = self._process.wait(5)
        except subprocess.TimeoutExpired:
            code = None
        return EngineEndedError(
            f"process {self.process_id} of the rollout engine 'vllm_omni' ended during {during} ({_exit(code)})",
            remedy="read the messages above, and look for a lack of memory (dmesg)",
        )

    async def draw(self, request: Mapping[str, Any], engine_id: str, lora: Mapping[str, Any] | None) -> Any:
        """The trajectory of one request, None where it was aborted; awaited from any loop.

        Raises:
            EngineEndedError: the process ended meanwhile.
            LifecycleError: the engine failed the request.
        """
        future = self._send("generate", {"request": request, "engine_id": engine_id, "lora": lora})
        self._drawing[engine_id] = future
        try:
            return await asyncio.wrap_future(future)
        finally:
            self._drawing.pop(engine_id, None)

    def abort(self, engine_ids: Sequence[str]) -> None:
        """End requests in the engine; those that are under way stop before their next step."""
        self._call("abort", {"engine_ids": list(engine_ids)})
        for name in engine_ids:
            future = self._drawing.get(name)
            if future is not None:
                _settle(future, None)

    def rpc(self, method: str, arguments: dict[str, Any]) -> list[Any]:
        """One of our calls (`extension.PolicyWorkerExtension`) in the workers; one answer, which speaks for all.

        Raises:
            EngineEndedError: the process is gone.
            LifecycleError: the call failed.
        """
        answers: list[Any] = self._call(
            "rpc", {"method": method, "arguments": arguments, "timeout_s": self._timeout_s}, method
        )
        if not answers:
            raise LifecycleError(f"no worker of the rollout engine 'vllm_omni' answered {method}")
        return answers

    def sleep(self, level: int) -> int:
        """Bytes that all stages say they released.

        Raises:
            LifecycleError: a stage did not acknowledge, or not with success.
        """
        return sum(ack["bytes"] for ack in _acknowledged("sleep", self._call("sleep", {"level": level})))

    def wake(self) -> None:
        """Bring the weights back; every stage must acknowledge."""
        _acknowledged("wake", self._call("wake", {}))

    def close(self) -> None:
        """End the process."""
        if self._closed:
            return
        self._closed = True
        try:
            self._socket.sendall(encode({"id": next(self._ids), "operation": "stop", "arguments": {}}))
            self._process.wait(30)
        except (OSError, subprocess.TimeoutExpired):
            LOG.debug("vLLM-Omni did not end by itself; its process %d is killed", self.process_id)
        finally:
            if self._process.poll() is None:
                self._process.kill()
                self._process.wait()
            self._guard.close()
            self._socket.close()

    def _call(self, operation: str, arguments: Mapping[str, Any], during: str = "") -> Any:
        try:
            return self._send(operation, arguments).result(self._timeout_s + 10)
        except concurrent.futures.TimeoutError as error:
            raise LifecycleError(
                f"the rollout engine 'vllm_omni' gave no answer to {during or operation} in {self._timeout_s:g} s",
                remedy="raise rollout.options.call_timeout_s, or restart the run",
            ) from error

    def _send(self, operation: str, arguments: Mapping[str, Any]) -> Future:
        future: Future = Future()
        name = next(self._ids)
        frame = encode({"id": name, "operation": operation, "arguments": arguments})
        with self._lock:
            self._waiting[name] = future
            try:
                self._socket.sendall(frame)
            except OSError:
                self._waiting.pop(name, None)
                future.set_exception(self.ended(operation))
        return future

    def _read(self) -> None:
        """Answers to their futures, until the socket ends; then everyone who waits hears of it."""
        try:
            while True:
                answer = {"value": None, **decode(self._received(body_length(self._received(HEADER.size))))}
                with self._lock:
                    future = self._waiting.pop(answer["id"], None)
                if future is not None:
                    _settle(future, answer["value"], "" if answer["ok"] else str(answer["error"]))
        except (OSError, EOFError, ValueError) as error:
            LOG.debug("the engine's socket ended: %r", error)
        with self._lock:
            waiting, self._waiting = list(self._waiting.values()), {}
        for future in waiting:
            if not future.done():
                future.set_exception(self.ended("its work"))

    def _received(self, count: int) -> bytes:
        parts, missing = [], count
        while missing:
            part = self._socket.recv(min(missing, 1 << 20))
            if not part:
                raise EOFError
            parts.append(part)
            missing -= len(part)
        return b"".join(parts)


def _settle(future: Future, value: Any, error: str = "") -> None:
    """Give a future its result, unless its caller is gone or it has one."""
    try:
        if error:
            future.set_exception(LifecycleError(f"the rollout engine 'vllm_omni' failed: {error:.1500}"))
        else:
            future.set_result(value)
    except concurrent.futures.InvalidStateError:
        LOG.debug("an answer came too late")


def _acknowledged(operation: str, acks: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    wrong = [ack for ack in acks if ack["status"] != "SUCCESS"]
    if wrong or not acks:
        stage, reason = (wrong[0]["stage"], wrong[0]["error"]) if wrong else ("?", "no stage answered")
        raise LifecycleError(f"the rollout engine 'vllm_omni' did not {operation}: stage {stage}: {reason}")
    return acks


def _exit(code: int | None) -> str:
    if code is None:
        return "it still runs, but hung up"
    return f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit status {code}"
