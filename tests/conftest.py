"""One Ray cluster for all tests of a session, started as a run would start its own, and what runs on it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session")
def cluster() -> Iterator[object]:
    """The connection that the launcher made; launchers of the tests find this process connected and leave it so."""
    pytest.importorskip("ray")
    from omni_backends.launch.ray import RayOptions
    from omni_backends.launch.ray.launcher import RayLauncher

    launcher = RayLauncher(RayOptions(cpus=16, object_store_mib=256))
    launcher.reserve([])
    yield launcher.connection
    launcher.shutdown()


@pytest.fixture(scope="session")
def queue(cluster: object) -> Iterator[object]:
    """A data plane for 16 groups and 8 MiB on the queue "tests", to which tests may attach planes of their own."""
    pytest.importorskip("transfer_queue")
    from omni_backends.dataplane.transferqueue.plane import TransferQueuePlane
    from tests.support.planes import queue_options

    plane = TransferQueuePlane(queue_options())
    yield plane
    plane.drop([tag.group_id for tag in plane.tags()])
    plane.close()


@pytest.fixture(params=["local", pytest.param("transferqueue", marks=pytest.mark.ray)])
def plane(request: pytest.FixtureRequest) -> object:
    """Every data plane in turn, empty."""
    if request.param == "local":
        from omni_backends.dataplane.local import LocalDataPlane

        return LocalDataPlane()
    shared = request.getfixturevalue("queue")
    shared.drop([tag.group_id for tag in shared.tags()])
    return shared
