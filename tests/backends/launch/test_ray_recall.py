"""A native replica that breaks off an update which all have verified: nobody is left at another version."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

import pytest

pytest.importorskip("ray")

from omni_backends.launch.ray import RayOptions  # noqa: E402
from omni_backends.launch.ray.host import RolloutHost  # noqa: E402
from omni_backends.launch.ray.launcher import RayLauncher  # noqa: E402
from omni_backends.launch.ray.wire import value  # noqa: E402
from omni_portable.contracts.errors import LifecycleError, WeightSyncError  # noqa: E402
from omni_portable.contracts.launcher import Role  # noqa: E402
from omni_portable.models.weights import make_stream  # noqa: E402
from omni_portable.rollout.router import Router  # noqa: E402
from tests.support.requests import make_request  # noqa: E402
from tests.support.toy_adapter import ToyTransformer  # noqa: E402
from tests.support.trajectories import bit_equal  # noqa: E402

pytestmark = pytest.mark.ray
HERE = "tests.backends.launch.ray_roles"
CPU = {"device": {"name": "cpu"}}
REQUESTS = [make_request(i) for i in range(2)]


def weights(change: float):
    tensors = {name: tensor.detach() + change for name, tensor in ToyTransformer().named_parameters()}
    return make_stream("full", tensors.items(), None)


def role(replica: int, build: str, **arguments: list[int]) -> Role:
    return Role("rollout", f"{HERE}:{build}", CPU, replica, arguments, environment={"OMP_NUM_THREADS": "1"})


def test_the_others_go_back_and_an_update_that_is_sent_again_reaches_all(cluster) -> None:
    launcher = RayLauncher(RayOptions())
    roles = [role(0, "build_native"), role(1, "build_native", fails_at=[1, 4])]
    try:
        launcher.reserve(roles)
        with ThreadPoolExecutor(2) as threads:
            engines = dict(zip([one.label for one in roles], threads.map(launcher.start, roles), strict=True))
        router = Router(engines)  # no copy here: each replica goes back by itself
        old, new = weights(0.125), weights(0.25)
        began = router.weights_checksum()
        router.pause()
        with pytest.raises(WeightSyncError, match="rollout replica 'rollout-1': the tensor '.*' could not be written"):
            router.update_weights(new, 1)
        for name, engine in engines.items():
            assert (engine.health().state.value, engine.health().policy_version) == ("paused", 0), name
        assert router.weights_checksum() == began
        router.update_weights(old, 2)
        router.resume()
        before = asyncio.run(router.generate(REQUESTS)).trajectories
        router.pause()
        with pytest.raises(WeightSyncError, match="rollout replica 'rollout-1': the tensor '.*' could not be written"):
            router.update_weights(weights(0.25), 3)
        for name, engine in engines.items():
            assert (engine.health().state.value, engine.health().policy_version) == ("paused", 2), name
        assert router.weights_checksum() == {name: said.checksum for name, said in old.manifest.tensors.items()}
        router.resume()
        again = asyncio.run(router.generate(REQUESTS)).trajectories
        assert bit_equal(before, again)
        router.pause()
        router.update_weights(weights(0.25), 4)
        assert [engine.health().policy_version for engine in engines.values()] == [4, 4]
        assert router.weights_checksum() == {name: said.checksum for name, said in new.manifest.tensors.items()}
    finally:
        launcher.shutdown()


def test_an_engine_that_cannot_take_an_update_back_says_so() -> None:
    host = RolloutHost()
    host._role = object()
    with pytest.raises(LifecycleError, match="cannot take a weight update back"):
        value(host.recall(0), "rollout-0")
