"""What the end of an engine's own process means outside a call to generate."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from omni_portable.contracts.errors import (
    EngineEndedError,
    EngineEndedInUpdateError,
    OmniPortableError,
    WeightSyncError,
)

LOG = logging.getLogger(__name__)


class EngineProcess(Protocol):
    """The processes of an engine."""

    @property
    def alive(self) -> bool:
        """Whether all of them run."""
        ...

    def ended(self, during: str) -> EngineEndedError:
        """What is known of their end, given what they were doing."""
        ...


@contextmanager
def unless_ended() -> Iterator[None]:
    """For calls that have nothing left to do where the process has ended: to stop its work, to count it."""
    try:
        yield
    except EngineEndedError as error:
        LOG.warning("%s", error.problem)


@contextmanager
def update_errors(process: EngineProcess, version: int) -> Iterator[None]:
    """For a weight update that brings this policy version: say what its failure means.

    Raises:
        EngineEndedInUpdateError: a process ended meanwhile.
        WeightSyncError: any other error of ours.
    """
    try:
        yield
    except OmniPortableError as error:
        if isinstance(error, EngineEndedError) or not process.alive:
            raise EngineEndedInUpdateError(
                process.ended(f"the weight update to policy version {version}").problem,
                remedy="look for a lack of memory (dmesg), and start the run again with --resume; with "
                "trainer.sync_attempts=2 a run starts the engine again and sends the weights a second time",
            ) from error
        if isinstance(error, WeightSyncError):
            raise
        raise WeightSyncError(f"the weight update failed: {error.problem}", remedy=error.remedy) from error
