"""A running vLLM: its asynchronous front in a thread of this process, the engine itself in processes of its own."""

from __future__ import annotations

import asyncio
import logging
import signal
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from omni_backends.rollout.external.environment import environment
from omni_backends.rollout.external.guard import Guard
from omni_backends.rollout.external.loop import LoopThread
from omni_backends.rollout.vllm.arguments import describe
from omni_backends.sync.processes import ProcessMark, mark_of
from omni_portable.contracts.errors import EngineEndedError, LifecycleError

LOG = logging.getLogger(__name__)
LOOK_S = 1.0
"""Seconds between two looks at the processes while a call waits for its answer."""

ResultT = TypeVar("ResultT")


class VllmProcess:
    """vLLM's `AsyncLLM` from start to end.

    Args:
        arguments: of `AsyncEngineArgs`.
        variables: of the engine's processes.
        start_timeout_s / call_timeout_s: see `VllmOptions`.
        made: folders that were made for the engine; where nobody else comes to remove them, its guard does.

    Raises:
        LifecycleError: it did not start.
    """

    def __init__(
        self,
        arguments: Mapping[str, Any],
        variables: Mapping[str, str],
        start_timeout_s: float,
        call_timeout_s: float,
        made: Iterable[Path] = (),
    ) -> None:
        self._timeout_s = call_timeout_s
        self._loop = LoopThread("omni-portable-vllm")
        self._closed = False
        self._workers: tuple[ProcessMark, ...] = ()
        self._guard = Guard()
        for path in made:
            self._guard.remove_too(path)
        started = time.perf_counter()
        try:
            with environment({**variables, **self._guard.variables}):
                self._llm: Any = self._loop.call(lambda: _start(arguments), start_timeout_s)
            self._processes: list[Any] = list(self._llm.engine_core.resources.engine_manager.processes)
        except BaseException as error:
            self._guard.close()
            self._loop.close()
            if not isinstance(error, Exception):
                raise
            raise LifecycleError(
                f"the rollout engine 'vllm' did not start: {error!r:.800}",
                remedy="set rollout.options.log_level=INFO and read the engine's own messages",
            ) from error
        self.start_seconds = time.perf_counter() - started
        LOG.info("vLLM started in %.1f s as %s with %s", self.start_seconds, self.process_ids, describe(arguments))

    @property
    def process_ids(self) -> tuple[int, ...]:
        """Of the engine's processes, and of workers beside them."""
        return (*(int(process.pid) for process in self._processes), *(mark.process for mark in self._workers))

    @property
    def alive(self) -> bool:
        """Whether all of its processes run."""
        running = all(process.is_alive() for process in self._processes)
        return not self._closed and running and all(mark.alive for mark in self._workers)

    def know_workers(self, processes: Iterable[int]) -> None:
        """Where the workers are: tensor-parallel ones are processes of the engine's process."""
        own = set(self.process_ids)
        self._workers = tuple(mark_of(process) for process in processes if process not in own)

    def ended(self, during: str) -> EngineEndedError:
        """What is known of a process that ended."""
        lost = [mark.process for mark in self._workers if not mark.alive]
        for process in self._processes:
            process.join(timeout=2)
        parts = [f"process {process.pid} ({_exit(process.exitcode)})" for process in self._processes]
        if lost:
            parts.append(f"worker{'s' * (len(lost) > 1)} {', '.join(map(str, lost))} gone")
        return EngineEndedError(
            f"the engine of rollout engine 'vllm' ended during {during}: {', '.join(parts)}",
            remedy="read the messages above, look for a lack of memory (dmesg), and start the run again with --resume",
        )

    def call(self, during: str, work: Coroutine[Any, Any, Any]) -> Any:
        """Wait for a coroutine of vLLM's front.

        Raises:
            EngineEndedError: the engine's process is gone.
            LifecycleError: no answer in time.
        """
        from vllm.v1.engine.exceptions import EngineDeadError

        async def run() -> Any:
            return await work

        future = self._loop.submit(run)
        deadline = time.monotonic() + self._timeout_s
        while True:
            try:
                return future.result(LOOK_S)
            except EngineDeadError as error:
                raise self.ended(during) from error
            except TimeoutError:  # vLLM's front does not always notice that its process has ended
                if not self.alive:
                    future.cancel()
                    raise self.ended(during) from None
                if time.monotonic() < deadline:
                    continue
                future.cancel()
                raise LifecycleError(
                    f"the rollout engine 'vllm' did not answer {during} within {self._timeout_s:g} s",
                    remedy="raise rollout.options.call_timeout_s, or restart the run",
                ) from None

    def rpc(self, method: str, arguments: dict[str, Any]) -> list[Any]:
        """One of our calls (`worker.WorkerExtension`) in every worker."""
        answers: list[Any] = self.call(method, self._llm.collective_rpc(method, kwargs=arguments))
        return answers

    async def generate(self, work: Callable[[Any], Coroutine[Any, Any, ResultT]]) -> ResultT:
        """Await `work(front)`, a coroutine on vLLM's loop, from another loop.

        Raises:
            EngineEndedError: the engine's process was gone before or is gone now.
        """
        if not self.alive:
            raise self.ended("generate")
        running = asyncio.ensure_future(self._loop.wait(lambda: work(self._llm)))
        try:
            while not running.done():
                await asyncio.wait([running], timeout=LOOK_S)
                if not running.done() and not self.alive:
                    await asyncio.wait([running], timeout=LOOK_S)
                    break
        finally:
            if not running.done():
                running.cancel()
        if not running.done():
            raise self.ended("generate")
        return running.result()

    def front(self) -> Any:
        """vLLM's `AsyncLLM`, for coroutines given to :meth:`call`."""
        return self._llm

    def close(self) -> None:
        """End the engine and its processes."""
        if self._closed:
            return
        self._closed = True

        async def stop() -> None:
            self._llm.shutdown(timeout=5)

        try:
            self._loop.call(stop, 30)
        finally:
            for process in self._processes:
                if process.is_alive():
                    process.kill()
                process.join(timeout=5)
            self._guard.close()
            self._loop.close()


async def _start(arguments: Mapping[str, Any]) -> Any:
    """Loads vLLM; the front is made on the loop that it stays on."""
    from vllm import AsyncEngineArgs
    from vllm.v1.engine.async_llm import AsyncLLM

    return AsyncLLM.from_engine_args(AsyncEngineArgs(**arguments))


def _exit(code: int | None) -> str:
    if code is None:
        return "still running"
    if code < 0:
        return f"killed by {signal.Signals(-code).name}"
    return f"exit status {code}"
