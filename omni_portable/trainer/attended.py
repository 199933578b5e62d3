"""Training that ends when what it lives on is gone, instead of waiting for answers that nobody will give."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from omni_portable.contracts.errors import ClusterError, WorkerLostError
from omni_portable.contracts.launcher import Launcher

NEWS_S = 3.0
"""Workers may be missed before their cluster is."""


async def attended(training: Coroutine[Any, Any, None], launcher: Launcher) -> None:
    """Train to the end, or until the launcher says that its roles are lost.

    An update that the actor is in is finished first, because it cannot be broken off.

    Raises:
        OmniPortableError: what the launcher said; it also stands for the loss of single workers that follows from it.
        Exception: any other that ended the training.
    """
    run, lost = asyncio.ensure_future(training), asyncio.ensure_future(launcher.lost())
    try:
        await asyncio.wait((run, lost), return_when=asyncio.FIRST_COMPLETED)
        if not run.done():
            raise lost.result()
        if isinstance(error := run.exception(), (ClusterError, WorkerLostError)):
            await asyncio.wait((lost,), timeout=NEWS_S)
            raise lost.result() if lost.done() else error
        await run
    finally:
        for task in (run, lost):
            task.cancel()
        await asyncio.gather(run, lost, return_exceptions=True)
