"""An event loop whose time is that of the simulation: it never waits, it jumps to what happens next."""

from __future__ import annotations

import asyncio
import math
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, Protocol, TypeVar

Result = TypeVar("Result")


class World(Protocol):
    """Events beside those of the loop."""

    def advance(self, until: float) -> float:
        """Let everything happen up to `until`, but stop at once where a future of the loop was resolved; the time
        reached, or infinity where nothing is left to happen and `until` is infinite."""
        ...


class VirtualLoop(asyncio.SelectorEventLoop):
    """Runs coroutines as they are. Sleeping costs nothing; work is declared with :meth:`spend`.

    Work in a thread (`asyncio.to_thread`) is done in place, and its future resolves once the seconds that it spent
    have passed.
    """

    def __init__(self) -> None:
        self.now = 0.0
        self.world: World | None = None
        self._spent: float | None = None
        super().__init__(_Jump(self))

    def time(self) -> float:
        """Seconds since the simulation began."""
        return self.now

    def spend(self, seconds: float) -> None:
        """The calling code takes so long: other events go on meanwhile where it runs in a thread, none otherwise."""
        if self._spent is None:
            self.now += seconds
        else:
            self._spent += seconds

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Callable[..., Result], *args: Any
    ) -> asyncio.Future[Result]:
        future: asyncio.Future[Result] = self.create_future()
        self._spent = 0.0
        try:
            result = func(*args)
        finally:
            spent, self._spent = self._spent, None
        self.call_later(spent, lambda: None if future.done() else future.set_result(result))
        return future

    def jump(self, until: float) -> None:
        """To the next event, `until` at the latest.

        Raises:
            RuntimeError: nothing will ever happen.
        """
        reached = until if self.world is None else self.world.advance(until)
        if math.isinf(reached):
            raise RuntimeError("the simulated run waits for something that will never happen")
        self.now = max(self.now, reached)


def run_virtual(main: Callable[[VirtualLoop], Coroutine[Any, Any, Result]]) -> Result:
    """Run `main(loop)` to its end on a loop of its own."""
    loop = VirtualLoop()
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        return runner.run(main(loop))


class _Jump(selectors.SelectSelector):
    """In place of waiting for files: the loop has nothing to do for `timeout` seconds, so time jumps."""

    def __init__(self, loop: VirtualLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout is None:
            self._loop.jump(math.inf)
        elif timeout > 0:
            self._loop.jump(self._loop.now + timeout)
        return []
