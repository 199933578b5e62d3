"""An event loop in a thread of its own, for engines whose interface is asynchronous. (Written with the vLLM engine.)

The rest of the program calls it from other threads and other loops: lifecycle calls wait, generations are awaited.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

LOG = logging.getLogger(__name__)
ResultT = TypeVar("ResultT")


class LoopThread:
    """Runs until :meth:`close`; daemonic, so that it never keeps a program from ending.

    Args:
        name: of the thread.
    """

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()

    def call(self, work: Callable[[], Coroutine[Any, Any, ResultT]], timeout_s: float) -> ResultT:
        """The result of a coroutine made and run on this loop; the calling thread waits.

        Raises:
            TimeoutError: it took longer; the coroutine is cancelled.
        """
        future = self.submit(work)
        try:
            return future.result(timeout_s)
        except concurrent.futures.TimeoutError:
            future.cancel()
            raise TimeoutError(f"no answer within {timeout_s:g} s") from None

    def submit(self, work: Callable[[], Coroutine[Any, Any, ResultT]]) -> concurrent.futures.Future[ResultT]:
        """As :meth:`call`, without waiting."""

        async def run() -> ResultT:
            return await work()

        return asyncio.run_coroutine_threadsafe(run(), self._loop)

    async def wait(self, work: Callable[[], Coroutine[Any, Any, ResultT]]) -> ResultT:
        """As :meth:`call`, awaited from another loop."""
        return await asyncio.wrap_future(self.submit(work))

    def close(self) -> None:
        """Cancel what runs and end the thread."""
        if self._loop.is_closed():
            return
        ended = asyncio.run_coroutine_threadsafe(cancel_all(), self._loop)
        try:
            ended.result(10)
        except concurrent.futures.TimeoutError:
            LOG.debug(
                "the thread '%s' does not come back from what it does; it ends with the program", self._thread.name
            )
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        if not self._thread.is_alive():
            self._loop.close()


async def cancel_all() -> None:
    """Cancel every other task of the loop that runs this one, and wait for them."""
    tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
