"""What ends a command from outside: SIGTERM (of Slurm, Kubernetes, systemd) and SIGHUP do what Ctrl-C does."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType

INTERRUPTED = 130
"""Exit code after Ctrl-C, as shells have it (128 + SIGINT)."""
SIGNALS = (signal.SIGTERM, signal.SIGHUP)
PATIENCE_S = 10.0
"""Seconds after which work that does not come to a point where it can be cancelled is broken off, as by a second
Ctrl-C: those who send SIGTERM kill soon after it (Kubernetes after 30 seconds)."""

log = logging.getLogger(__name__)


@dataclass
class Stopped:
    """Which signal came first, if any.

    Args:
        insisting: the next signal is one of our own, see `_insist`.
        breaking: an event loop was told to break off, see `_break_off`.
        ended: the command is over.
    """

    by: signal.Signals | None = None
    insisting: bool = False
    breaking: bool = False
    ended: threading.Event = field(default_factory=threading.Event)

    @property
    def exit_code(self) -> int:
        """128 + the signal's number; that of Ctrl-C where none came."""
        return INTERRUPTED if self.by is None else 128 + self.by

    @property
    def text(self) -> str:
        return "interrupted" if self.by is None else f"stopped by {self.by.name}"


_current = Stopped()


def stopped() -> Stopped:
    """What stopped the command that runs now."""
    return _current


@contextmanager
def stop_like_ctrl_c() -> Iterator[Stopped]:
    """Treat the signals like SIGINT while the context is open.

    One that somebody else handles, or that is ignored (`nohup`), stays as it is, and so do all of them outside the main
    thread, where Python takes no signals.
    """
    global _current
    before, _current = _current, Stopped()
    mine = []
    if threading.current_thread() is threading.main_thread():
        mine = [number for number in SIGNALS if signal.getsignal(number) is signal.SIG_DFL]
    for number in mine:
        signal.signal(number, _handle)
    try:
        yield _current
    finally:
        _current.ended.set()
        for number in mine:
            signal.signal(number, signal.SIG_DFL)
        _current = before


@contextmanager
def undisturbed(last: bool = False) -> Iterator[None]:
    """Ignore a second Ctrl-C while the message about the first is written.

    Args:
        last: nothing comes after this but the end of the process: a further signal then ends it at once, without the
            traceback that Python would show.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, *SIGNALS)}
    for number in before:
        signal.signal(number, signal.SIG_IGN)
    try:
        yield
    finally:
        for number, handler in before.items():
            handled = handler is signal.default_int_handler or handler is _handle
            signal.signal(number, signal.SIG_DFL if last and handled else handler)


def _handle(number: int, frame: FrameType | None) -> None:
    """Hand over to whoever handles Ctrl-C now: an event loop cancels its task, else KeyboardInterrupt is raised."""
    if _current.insisting:
        _current.insisting = False
        if not _in_event_loop():  # it has ended: what runs now is cleaning up
            return
    if _current.by is None:
        _current.by = signal.Signals(number)
        log.warning("%s arrived: stopping as after Ctrl-C", _current.by.name)
        threading.Thread(target=_insist, args=(_current,), name="insist", daemon=True).start()
    on_ctrl_c = signal.getsignal(signal.SIGINT)
    if callable(on_ctrl_c):
        on_ctrl_c(signal.SIGINT, frame)
    else:  # ignored, as in jobs that a script puts into the background
        _break_off()


def _break_off() -> None:
    """Raise KeyboardInterrupt; in an event loop at its next turn first, and not in the task that runs just now.

    A loop that has no handler of its own for Ctrl-C, because that is ignored, would keep the exception for whoever
    awaits this task, which may be nobody.
    """
    if not _current.breaking and _in_event_loop():
        from asyncio import get_running_loop

        _current.breaking = True
        get_running_loop().call_soon_threadsafe(_interrupt)
        return
    raise KeyboardInterrupt


def _interrupt() -> None:
    raise KeyboardInterrupt


def _in_event_loop() -> bool:
    from asyncio import get_running_loop  # slow to import for commands that never need it

    try:
        get_running_loop()
    except RuntimeError:
        return False
    return True


def _insist(command: Stopped) -> None:
    """Send the signal again while an event loop waits for what cannot be cancelled: a task that computes, a thread."""
    identifier = threading.main_thread().ident
    while command.by is not None and identifier is not None and not command.ended.wait(PATIENCE_S):
        command.insisting = True
        signal.pthread_kill(identifier, command.by)
