"""Training beside a launcher whose cluster may be lost."""

from __future__ import annotations

import asyncio

import pytest

from omni_backends.launch.local import LocalLauncher
from omni_portable.contracts.errors import ClusterError, DataError, OmniPortableError, WorkerLostError
from omni_portable.trainer import attended as module
from omni_portable.trainer.attended import attended

GONE = ClusterError("the head is gone", remedy="run it again")


class Launcher(LocalLauncher):
    """Loses its cluster when it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.gone = asyncio.Event()

    async def lost(self) -> OmniPortableError:
        await self.gone.wait()
        return GONE


class Training:
    """Waits, notes how it ended, and may fail."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error, self.ended, self.go_on = error, "", asyncio.Event()

    async def run(self) -> None:
        try:
            await self.go_on.wait()
            if self.error:
                raise self.error
            self.ended = "done"
        except asyncio.CancelledError:
            self.ended = "cancelled"
            raise


def test_it_ends_with_the_training_under_a_launcher_that_loses_nothing() -> None:
    async def run() -> str:
        training = Training()
        training.go_on.set()
        await asyncio.wait_for(attended(training.run(), LocalLauncher()), 60)
        return training.ended

    assert asyncio.run(run()) == "done"


def test_training_that_waits_for_a_cluster_that_is_gone_is_ended() -> None:
    async def run() -> None:
        training, launcher = Training(), Launcher()
        asyncio.get_running_loop().call_later(0.01, launcher.gone.set)
        with pytest.raises(ClusterError) as caught:
            await attended(training.run(), launcher)
        assert caught.value is GONE
        assert training.ended == "cancelled"

    asyncio.run(run())


@pytest.mark.parametrize("error", [WorkerLostError("rollout-0 is gone"), ClusterError("no answer")])
def test_lost_workers_that_the_cluster_took_along_are_called_so(
    error: OmniPortableError, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run(gone: bool) -> OmniPortableError:
        training, launcher = Training(error), Launcher()
        training.go_on.set()
        if gone:
            asyncio.get_running_loop().call_later(0.01, launcher.gone.set)
        with pytest.raises(OmniPortableError) as caught:
            await attended(training.run(), launcher)
        return caught.value

    assert asyncio.run(run(gone=True)) is GONE
    monkeypatch.setattr(module, "NEWS_S", 0.05)
    assert asyncio.run(run(gone=False)) is error


def test_other_errors_are_raised_at_once() -> None:
    async def run() -> None:
        training = Training(DataError("no prompt"))
        training.go_on.set()
        with pytest.raises(DataError, match="no prompt"):
            await asyncio.wait_for(attended(training.run(), Launcher()), 1.0)

    asyncio.run(run())


def test_who_cancels_it_cancels_the_training() -> None:
    async def run() -> None:
        training = Training()
        task = asyncio.create_task(attended(training.run(), Launcher()))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert training.ended == "cancelled"

    asyncio.run(run())
