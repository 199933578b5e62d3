"""Waiting for work in a daemon thread: unlike the event loop's own threads, nothing waits for one that is given up."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


async def in_daemon_thread(work: Callable[[], T]) -> T:
    """Run `work` beside the event loop. When the caller is cancelled, the thread is left behind: neither the loop's
    end (as after Ctrl-C) nor the interpreter's waits for it."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def deliver(value: T | None, error: BaseException | None) -> None:
        if future.done():  # given up
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(value)  # type: ignore[arg-type]  # of type T where there is no error

    def call() -> None:
        value, problem = None, None
        try:
            value = work()
        except BaseException as error:  # noqa: BLE001 - raised where the result is awaited
            problem = error
        if not loop.is_closed():
            try:
                loop.call_soon_threadsafe(deliver, value, problem)
            except RuntimeError:  # closed in between: nobody waits any more
                return

    threading.Thread(target=call, name="reward", daemon=True).start()
    return await future
