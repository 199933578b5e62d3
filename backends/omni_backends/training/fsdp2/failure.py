"""What went wrong in a rank, on its way to the driver and out of it."""

from __future__ import annotations

import itertools
import signal
import traceback
from dataclasses import dataclass
from pathlib import Path

from torch import distributed

from omni_portable.contracts import errors
from omni_portable.contracts.errors import OmniPortableError

COLLECTIVES = ("torch", "distributed")
"""Folders of the code in which a rank waits for the others."""


class RankError(OmniPortableError):
    """A rank of a train engine that died or failed; the others were stopped."""


class RankTraceback(Exception):  # noqa: N818 - it is shown as the cause, and is no error of its own
    """The traceback of an exception in another process, as text."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


@dataclass(frozen=True)
class Failure:
    """An exception as plain text.

    Args:
        kind: its class; those of `contracts.errors` are raised again as what they are.
        problem / remedy / choices: see `OmniPortableError`; of other exceptions the problem is the message.
        trace: formatted traceback.
        waited: it was raised while the rank waited for others in a collective operation, whose fault it may be.
    """

    kind: str
    problem: str
    remedy: str
    choices: tuple[str, ...]
    trace: str
    waited: bool = False

    @classmethod
    def of(cls, error: BaseException) -> Failure:
        """Describe an exception that is being handled."""
        trace = "".join(traceback.format_exception(error))
        if isinstance(error, OmniPortableError):
            return cls(type(error).__name__, error.problem, error.remedy, error.choices, trace)
        return cls(type(error).__name__, str(error) or type(error).__name__, "", (), trace, _waited(error))

    def told(self, who: str, what: str) -> str:
        """The failure without its traceback, which only a failure that nothing else explains is told with.

        Args:
            who / what: see :meth:`error`.
        """
        if self.kind == RankError.__name__:
            return f"{self.problem} ({who}, {what})"
        return f"{who} failed to {what}: {self.kind}: {self.problem}"

    def error(self, who: str, what: str) -> OmniPortableError:
        """The error to raise in the driver, its cause the rank's traceback.

        Args:
            who: the rank, for messages.
            what: the operation.
        """
        known = getattr(errors, self.kind, None)
        raised: OmniPortableError
        if isinstance(known, type) and issubclass(known, OmniPortableError):
            raised = known(f"{self.problem} ({who}, {what})", remedy=self.remedy, choices=self.choices)
        elif self.kind == RankError.__name__:
            raised = RankError(self.told(who, what), remedy=self.remedy, choices=self.choices)
        else:
            raised = RankError(f"{self.told(who, what)}\n{self.trace}")
        raised.__cause__ = RankTraceback(self.trace)
        return raised


def _waited(error: BaseException) -> bool:
    """Was it raised by a collective operation? gloo's errors have no class of their own."""
    if type(error) is not RuntimeError and not isinstance(error, distributed.DistError):
        return False
    frames = traceback.extract_tb(error.__traceback__)
    return bool(frames) and COLLECTIVES in itertools.pairwise(Path(frames[-1].filename).parts)


def died(who: str, what: str, exit_code: int | None) -> RankError:
    """The error for a process that ended without an answer."""
    return lost(who, what, how_it_ended(exit_code))


def how_it_ended(exit_code: int | None) -> str:
    """'was killed by signal 9 (SIGKILL)', of the exit code of a child."""
    if exit_code is None:
        return "closed its connection"
    if exit_code >= 0:
        return f"ended with exit code {exit_code}"
    try:
        name = signal.Signals(-exit_code).name
    except ValueError:
        name = "unknown"
    return f"was killed by signal {-exit_code} ({name})"


def lost(who: str, what: str, how: str) -> RankError:
    """The error for a process that is gone.

    Args:
        how: see :func:`how_it_ended`.
    """
    return RankError(
        f"{who} {how} while it had to {what}; the other ranks were stopped",
        remedy="look for what it wrote last (above, or in its log), and for the kernel's out-of-memory killer (dmesg); "
        "then continue from the last checkpoint with trainer.resume=auto",
    )
