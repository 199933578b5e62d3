"""Weights go from ranks to rollout workers beside the trainer: what passes it, what arrives, and what gets lost."""

from __future__ import annotations

import os
import signal
import sys
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

ray = pytest.importorskip("ray")

from ray.actor import ActorMethod  # noqa: E402

from omni_backends.launch.ray import RayOptions, ranks  # noqa: E402
from omni_backends.launch.ray.engine import RemoteRolloutEngine, bounded  # noqa: E402
from omni_backends.launch.ray.host import RolloutHost  # noqa: E402
from omni_backends.launch.ray.launcher import RayLauncher  # noqa: E402
from omni_backends.launch.ray.tensors import Bundle  # noqa: E402
from omni_backends.launch.ray.wire import value  # noqa: E402
from omni_backends.training.fsdp2.engine import Fsdp2TrainEngine  # noqa: E402
from omni_backends.training.fsdp2.failure import RankError  # noqa: E402
from omni_backends.training.fsdp2.stream import GatheredStream  # noqa: E402
from omni_portable.contracts.errors import LifecycleError, WeightSyncError  # noqa: E402
from omni_portable.contracts.launcher import Role  # noqa: E402
from omni_portable.contracts.weights import PiecewiseStream  # noqa: E402
from omni_portable.models.weights import make_stream  # noqa: E402
from omni_portable.rollout.blob import flat_bytes  # noqa: E402
from omni_portable.rollout.codec import pack  # noqa: E402
from omni_portable.rollout.distant import Bundles, DistantTensor, brought  # noqa: E402
from omni_portable.rollout.router import Router  # noqa: E402
from tests.backends.launch.ray_roles import Owner  # noqa: E402
from tests.backends.training.fsdp2.blocks import WIDE, blocks_plugin, blocks_setup  # noqa: E402
from tests.support.processes import assert_gone  # noqa: E402

CPU = {"device": {"name": "cpu"}}
MIB = 1 << 20


def gathered(limit: int, changed: list[int] | None = None) -> GatheredStream:
    tensors = {name: torch.full((16,), float(at)) for at, name in enumerate("abcd")}
    manifest = make_stream("full", tensors.items(), None).manifest
    versions = iter(changed or [])
    sizes = {name: tensor.nbytes for name, tensor in tensors.items()}

    def gather(names) -> dict[str, torch.Tensor]:
        return {name: tensors[name] for name in names}

    return GatheredStream(manifest, sizes, gather, lambda: next(versions, 0), limit)


def test_weights_are_gathered_in_pieces_of_a_size_and_once() -> None:
    assert isinstance(gathered(128), PiecewiseStream)
    assert [list(piece) for piece in gathered(128).pieces()] == [["a", "b"], ["c", "d"]]
    assert [name for name, _ in gathered(64)] == ["a", "b", "c", "d"]
    stream = gathered(128)
    assert len(dict(stream)) == 4
    with pytest.raises(WeightSyncError, match="read twice"):
        next(stream.pieces())
    with pytest.raises(WeightSyncError, match="changed while they were read"):
        list(gathered(128, [0, 0, 1]))


def test_a_piece_is_sent_in_pieces_of_a_smaller_size() -> None:
    assert [list(bucket) for bucket in bounded(gathered(192), 128)] == [["a", "b"], ["c"], ["d"]]


def test_a_worker_reads_a_bucket_of_which_it_is_sent_places() -> None:
    host = RolloutHost()
    tensors = {"w": torch.randn(3, 5), "half": torch.randn(4).bfloat16()}
    parts = [flat_bytes(tensor).numpy() for tensor in tensors.values()]
    source = Bundle("reference", lambda reference: pytest.fail("it came here"))
    sent = {name: DistantTensor(t.shape, t.dtype, source, at) for at, (name, t) in enumerate(tensors.items())}
    bundles = Bundles()
    blob = pack(sent | {"small": torch.ones(2)}, bundles)
    manifest = make_stream("full", (tensors | {"small": torch.ones(2)}).items(), None).manifest
    assert bundles.sources == [source]
    value(host.stage(pack(manifest), 3), "rollout-0")
    value(host.bucket(blob, parts), "rollout-0")
    assert value(host.seal(), "rollout-0") == manifest.bytes
    _, _, held = host._staged
    assert all(type(tensor) is torch.Tensor for tensor in held.values())
    value(host.stage(pack(manifest), 3), "rollout-0")
    value(host.bucket(blob, [parts[0] + 1, parts[1]]), "rollout-0")
    with pytest.raises(WeightSyncError, match="the tensor 'w' arrived with checksum"):
        value(host.seal(), "rollout-0")


class Passed:
    """Bytes that come to this process from Ray, or go from it."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.total = 0
        get, put, call = ray.get, ray.put, ActorMethod._remote

        def getting(references, **options):
            return self._count(get(references, **options))

        def calling(method, args=None, *others, **options):
            self._count(args)
            return call(method, args, *others, **options)

        patch.setattr(ray, "get", getting)
        patch.setattr(ray, "put", lambda given, **options: put(self._count(given), **options))
        patch.setattr(ActorMethod, "_remote", calling)

    def since(self) -> int:
        """Since the last question."""
        total, self.total = self.total, 0
        return total

    def _count(self, what: Any) -> Any:
        if isinstance(what, (list, tuple)):
            for one in what:
                self._count(one)
        elif not isinstance(what, ray.ObjectRef):
            self.total += getattr(what, "nbytes", len(what) if isinstance(what, (bytes, str)) else 0)
        return what


@pytest.fixture(scope="module")
def plugin(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with blocks_plugin(tmp_path_factory.mktemp("plugin")) as folder:
        yield folder


def actor(plugin: Path, width: int, world: int = 2) -> Role:
    path = os.pathsep.join([str(plugin), str(Path.cwd()), *sys.path])
    environment = {"PYTHONPATH": path, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    here = {"setup": blocks_setup(world=world, model=f"{WIDE}{width}")}
    build = "tests.backends.training.fsdp2.blocks:build_engine"
    return Role("actor", build, CPU, here=here, environment=environment, ranks=world)


def rollout(replica: int) -> Role:
    build = "tests.backends.launch.ray_roles:build_replica"
    return Role("rollout", build, CPU, replica, {"opened": True}, environment={"OMP_NUM_THREADS": "1"})


@pytest.fixture(scope="module")
def workers(cluster, plugin: Path) -> Iterator[tuple[RayLauncher, dict[str, RemoteRolloutEngine]]]:
    """A launcher with two ranks' places, and two replicas that hold what they are sent; nothing waits for ever."""
    launcher = RayLauncher(RayOptions(bucket_mib=1, answer_timeout_s=240.0))
    roles = [rollout(0), rollout(1)]
    try:
        launcher.reserve([actor(plugin, 1), *roles])
        with ThreadPoolExecutor(2) as threads:
            yield launcher, dict(zip([r.label for r in roles], threads.map(launcher.start, roles), strict=True))
    finally:
        launcher.shutdown()


@contextmanager
def started(launcher: RayLauncher, role: Role) -> Iterator[Fsdp2TrainEngine]:
    engine = launcher.start(role)
    try:
        yield engine
    finally:
        engine.close()
        launcher.stop(role)


@pytest.fixture
def alive(monkeypatch: pytest.MonkeyPatch) -> weakref.WeakSet[Bundle]:
    """What this process refers to of what ranks left in the object store."""
    found: weakref.WeakSet[Bundle] = weakref.WeakSet()

    class Known(Bundle):
        def __init__(self, *given) -> None:
            super().__init__(*given)
            found.add(self)

    monkeypatch.setattr(ranks, "Bundle", Known)
    return found


def paused(engines: dict[str, RemoteRolloutEngine], **options) -> tuple[Router, int]:
    """A router over replicas that may have been used before, and the next version."""
    router = Router(dict(engines), **options)
    for engine in engines.values():
        if engine.health().state.value == "running":
            engine.pause()
    return router, 1 + max(engine.health().policy_version for engine in engines.values())


@pytest.mark.ray
def test_what_passes_the_trainer_does_not_grow_with_the_weights(workers, plugin, alive, monkeypatch) -> None:
    launcher, engines = workers
    router, version = paused(engines, restart=lambda label: again(launcher, label), restarts=1)
    send, seen = RemoteRolloutEngine._send, list[tuple[int, int]]()

    def sending(engine: RemoteRolloutEngine, bucket: dict[str, torch.Tensor]) -> None:
        distant = [tensor for tensor in bucket.values() if isinstance(tensor, DistantTensor)]
        seen.append((len(distant), len(alive)))
        send(engine, bucket)

    monkeypatch.setattr(RemoteRolloutEngine, "_send", sending)
    passed = Passed(monkeypatch)

    def update(engine: Fsdp2TrainEngine, width: int, version: int) -> int:
        """Bytes that passed here for one; the same tensors sent from here arrive as the same."""
        wanted = engine.weights_checksum()
        seen.clear()
        passed.since()
        router.update_weights(engine.weights(), version)
        came = passed.since()
        assert router.weights_checksum() == wanted
        assert sorted(distant for distant, _ in seen) == [0, 0] + [1] * 8, "four matrices to two replicas, and the rest"
        assert len(alive) == 4, "a copy for successors"
        plain = {name: brought(tensor) for name, tensor in engine.weights()}
        passed.since()
        router.update_weights(make_stream("full", plain.items(), None), version + 1)
        assert passed.since() > 2 * 4 * 4 * width * width, "what is sent from here is counted"
        assert router.weights_checksum() == wanted
        assert len(alive) == 0
        return came

    with started(launcher, actor(plugin, 512, 1)) as engine:
        small = update(engine, 512, version)
    with started(launcher, actor(plugin, 1024, 2)) as engine:
        large = update(engine, 1024, version + 2)
        assert max(small, large) < 65536
        assert abs(large - small) < 4096

        monkeypatch.setattr(router._crew, "keeps", False)
        seen.clear()
        router.update_weights(engine.weights(), version + 4)
        assert max(bundles for _, bundles in seen) == 1, "one bucket is in the object store at a time"
        assert len(alive) == 0

        monkeypatch.setattr(router._crew, "keeps", True)
        router.update_weights(engine.weights(), version + 5)
        pid = launcher._workers["rollout-1"].pid
        os.kill(pid, signal.SIGKILL)
        assert_gone([pid])
        passed.since()
        while "rollout-1" in router.replicas:
            router.health()
        router._crew.complete()
        assert passed.since() < 65536, "its successor reads them where they are"
        assert set(router.replicas) == {"rollout-0", "rollout-1"}
        assert router.weights_checksum() == engine.weights_checksum()
    engines |= router._crew.engines()
    router.close()


def again(launcher: RayLauncher, label: str) -> Any:
    role = rollout(int(label[-1]))
    launcher.stop(role)
    return launcher.start(role)


@pytest.mark.ray
def test_objects_that_are_lost_fail_the_update_and_a_rank_that_is_killed_ends_it(workers, plugin, monkeypatch) -> None:
    launcher, engines = workers
    router, version = paused(engines)
    send = RemoteRolloutEngine._send
    owner = ray.remote(num_cpus=0)(Owner).remote()
    (nowhere,) = ray.get(owner.put.remote())
    ray.kill(owner)
    with started(launcher, actor(plugin, 512)) as engine:
        router.update_weights(engine.weights(), version)
        held = router.weights_checksum()

        def losing(sender: RemoteRolloutEngine, bucket: dict[str, torch.Tensor]) -> None:
            if "wide.2.weight" in bucket:
                bucket["wide.2.weight"].source.reference = nowhere
            send(sender, bucket)

        monkeypatch.setattr(RemoteRolloutEngine, "_send", losing)
        lost = r"rollout replica 'rollout-\d': the tensor 'wide.2.weight' and 0 more .* gone from the cluster's object"
        with pytest.raises(WeightSyncError, match=lost):
            router.update_weights(engine.weights(), version + 1)
        assert [one.health().policy_version for one in engines.values()] == [version, version]
        monkeypatch.setattr(RemoteRolloutEngine, "_send", send)
        assert router.update_weights(engine.weights(), version + 2).policy_version == version + 2

        def killing(sender: RemoteRolloutEngine, bucket: dict[str, torch.Tensor]) -> None:
            if "wide.1.weight" in bucket and sender is engines["rollout-1"]:
                os.kill(engine.pids[0], signal.SIGKILL)
                assert_gone(engine.pids[:1])
            send(sender, bucket)

        monkeypatch.setattr(RemoteRolloutEngine, "_send", killing)
        with pytest.raises(
            RankError, match=r"^rank 0 of 2 \('actor-0', pid \d+ on [\d.]+\).* was lost .*had to gather"
        ):
            router.update_weights(engine.weights(), version + 3)
        assert_gone(engine.pids)
        with pytest.raises(LifecycleError, match="its ranks were stopped because rank 0 of 2"):
            router.update_weights(engine.weights(), version + 3)
    states = [(one.health().state.value, one.health().policy_version) for one in engines.values()]
    assert states == [("paused", version + 2)] * 2
    assert router.weights_checksum() == held
    for one in engines.values():
        with pytest.raises(WeightSyncError, match="no weight update is staged"):
            one.commit_weights(version + 3)
