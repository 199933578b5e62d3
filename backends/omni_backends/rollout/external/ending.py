"""What the end of an engine's own process means outside a call to generate."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from omni_portable.contracts.errors import EngineEndedError, EngineEndedInUpdateError

LOG = logging.getLogger(__name__)


@contextmanager
def unless_ended() -> Iterator[None]:
    """For calls that have nothing left to do where the process has ended: to stop its work, to count it."""
    try:
        yield
    except EngineEndedError as error:
        LOG.warning("%s", error.problem)


def ended_in_update(ended: Callable[[str], EngineEndedError], version: int) -> EngineEndedInUpdateError:
    """The error of an update during which the process ended.

    Args:
        ended: the process's own words about its end, given what it was doing.
        version: the policy version that the update was to bring.
    """
    problem = ended(f"the weight update to policy version {version}").problem
    return EngineEndedInUpdateError(
        problem,
        remedy="look for a lack of memory (dmesg), and start the run again with --resume; with trainer.sync_attempts=2 "
        "a run starts the engine again and sends the weights a second time",
    )
