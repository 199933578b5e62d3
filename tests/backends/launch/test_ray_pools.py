"""What is asked of a Ray cluster, and settings that none can give; no cluster is needed."""

from __future__ import annotations

import itertools
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest

from omni_backends.launch.ray import RayOptions
from omni_portable.config.convert import Source
from omni_portable.config.schema import LauncherConfig, RolloutConfig, RunConfig, TrainerConfig
from omni_portable.config.validate import _check_launcher
from omni_portable.contracts import registry
from omni_portable.contracts.errors import CapabilityError, ClusterError, ConfigError, PluginError
from omni_portable.contracts.launcher import Role


def roles(device: str, rollouts: int = 1, rewards: int = 1) -> list[Role]:
    config = {"device": {"name": device}}
    counts = {"actor": 1, "rollout": rollouts, "reward": rewards}
    return [Role(name, "a:b", config, i) for name, count in counts.items() for i in range(count)]


@pytest.mark.parametrize(("device", "resource"), [("cuda", "GPU"), ("rocm:gfx942", "GPU"), ("ascend:a3", "NPU")])
def test_devices_are_asked_for_by_the_name_their_vendor_gives_them(device, resource):
    pytest.importorskip("ray")
    from omni_backends.launch.ray.pools import pools

    found = {pool.name: (pool.each, pool.replicas) for pool in pools(roles(device, 3), RayOptions())}
    assert found == {
        "actor": ({resource: 1.0}, 1),
        "rollout": ({"CPU": 1.0, resource: 1.0}, 3),
        "reward": ({"CPU": 1.0}, 1),
    }


def test_processors_are_no_devices_and_the_actor_lives_with_the_trainer():
    pytest.importorskip("ray")
    from omni_backends.launch.ray.pools import local_cpus, pools

    found = pools(roles("cpu", 2, 3), RayOptions(rollout_cpus=2))
    assert [(pool.name, pool.each) for pool in found] == [
        ("actor", {}),
        ("rollout", {"CPU": 2}),
        ("reward", {"CPU": 1}),
    ]
    assert local_cpus(found, RayOptions()) == 2 * 2 + 3 + 4
    assert local_cpus(found, RayOptions(cpus=3)) == 3


@pytest.mark.parametrize(("device", "each"), [("cuda", {"CPU": 2.0, "GPU": 1.0}), ("cpu", {"CPU": 2.0})])
def test_ranks_of_an_actor_are_a_pool_of_their_own(device, each):
    pytest.importorskip("ray")
    from omni_backends.launch.ray.pools import check_room, local_cpus, pools

    ranked = [replace(role, ranks=4) if role.name == "actor" else role for role in roles(device)]
    wanted = pools(ranked, RayOptions(actor_cpus=2))
    assert (wanted[0].name, wanted[0].each, wanted[0].replicas, wanted[0].here) == ("actor", each, 4, False)
    assert local_cpus(wanted, RayOptions()) == 4 * 2 + 1 + 1 + 4
    assert pools(roles("cuda"), RayOptions())[0].here
    room = {"CPU": 8.0, "GPU": 3.0}
    with pytest.raises(ClusterError, match=r"(?s)missing are 2 CPU \(of 10\).*actor: 4 x 2 CPU.*actor.world_size"):
        check_room(wanted, room, [room])


def shared(device: str, ranks: int, replicas: int) -> list[Role]:
    beside = {"rollout": {"beside": "actor"}, "actor": {"ranks": ranks}}
    return [replace(role, **beside.get(role.name, {})) for role in roles(device, replicas)]


@pytest.mark.parametrize(
    ("device", "each", "rank", "replica"),
    [
        ("cuda", {"CPU": 3.0, "GPU": 1.0}, {"CPU": 2.0, "GPU": 0.5}, {"CPU": 1.0, "GPU": 0.5}),
        ("ascend:a3", {"CPU": 3.0, "NPU": 1.0}, {"CPU": 2.0, "NPU": 0.5}, {"CPU": 1.0, "NPU": 0.5}),
        ("cpu", {"CPU": 3.0}, {"CPU": 2.0}, {"CPU": 1.0}),
    ],
)
def test_a_rank_and_a_replica_share_what_one_of_them_would_have(device, each, rank, replica):
    pytest.importorskip("ray")
    from omni_backends.launch.ray.pools import local_cpus, place, pools

    options = RayOptions(rollout_devices=0, actor_cpus=3)
    given = shared(device, 4, 4)
    wanted = pools(given, options)
    assert [(pool.name, pool.guest, pool.each, pool.replicas) for pool in wanted] == [
        ("actor", "rollout", each, 4),
        ("reward", "", {"CPU": 1.0}, 1),
    ]
    assert local_cpus(wanted, options) == 4 * 3 + 1 + 4
    for at in range(4):
        host, guest = (place(replace(role, replica=at), wanted, options) for role in given[:2])
        assert (host.pool, host.bundle, host.takes) == ("actor", at, rank)
        assert (guest.pool, guest.bundle, guest.takes) == ("actor", at, replica)
    assert place(given[-1], wanted, options).pool == "reward"


def test_two_ranks_and_two_replicas_fit_on_two_cpus_and_fewer_replicas_are_spread():
    pytest.importorskip("ray")
    from omni_backends.launch.ray.pools import check_room, place, pools

    options = RayOptions(rollout_devices=0, reward_cpus=0)
    wanted = pools(shared("cpu", 2, 2), options)
    check_room(wanted, {"CPU": 2.0}, [{"CPU": 2.0}])
    with pytest.raises(ClusterError, match=r"missing are 1 CPU \(of 2\).*actor with rollout: 2 x 1 CPU"):
        check_room(wanted, {"CPU": 1.0}, [{"CPU": 2.0}])
    for replicas, bundles in ((1, [0]), (2, [0, 4]), (3, [0, 2, 5])):
        given = shared("cpu", 8, replicas)
        found = [place(role, pools(given, options), options).bundle for role in given if role.name == "rollout"]
        assert found == bundles


def test_ranks_meet_on_the_first_ones_machine_and_count_their_neighbours():
    pytest.importorskip("ray")
    from omni_backends.launch.ray.ranks import places

    addresses = ["10.0.0.1", "10.0.0.2", "10.0.0.1"]
    facts = [{"pid": i, "address": address, "interface": f"eth{i}"} for i, address in enumerate(addresses)]
    facts[0]["port"] = 4711
    found = places(facts, bound=False)
    assert {place.init_method for place in found} == {"tcp://10.0.0.1:4711"}
    assert [(place.rank, place.device_index, place.neighbours) for place in found] == [(0, 0, 2), (1, 0, 1), (2, 1, 2)]
    assert [place.interface for place in found] == ["eth0", "eth1", "eth2"]
    assert {place.device_index for place in places(facts, bound=True)} == {0}
    (alone,) = places([{"pid": 1, "address": "fd00::1", "interface": "eth0", "port": 5}], bound=False)
    assert alone.init_method == "tcp://[fd00::1]:5"


def test_the_interface_of_a_machine_is_that_of_its_address(monkeypatch):
    pytest.importorskip("ray")
    from omni_backends.launch.ray import rank_host

    addresses = {"lo": ["127.0.0.1"], "eth0": ["10.0.0.7", "fe80::1%eth0"]}
    found = {name: [SimpleNamespace(address=one) for one in ones] for name, ones in addresses.items()}
    monkeypatch.setattr(rank_host.psutil, "net_if_addrs", lambda: found)
    assert (rank_host.interface("127.0.0.1"), rank_host.interface("10.0.0.7")) == ("", "eth0")
    assert rank_host.interface("fe80::1") == "eth0"
    with pytest.raises(ClusterError, match="known to the Ray cluster as 10.9.9.9, which is an address of none"):
        rank_host.interface("10.9.9.9")


def test_what_is_missing_is_said_by_resource_and_by_machine():
    pytest.importorskip("ray")
    from omni_backends.launch.ray.pools import check_room, pools

    wanted = pools(roles("cuda", 4), RayOptions(rollout_devices=2))
    big = {"CPU": 64.0, "GPU": 9.0}
    check_room(wanted, big, [big])
    found = r"missing are 1 GPU \(of 9\); asked for are actor: 1 x 1 GPU; rollout: 4 x"
    with pytest.raises(ClusterError, match=found) as caught:
        check_room(wanted, big | {"GPU": 8.0}, [big])
    assert "in mode sync launcher.options.rollout_devices=0 has rollout share the actor's" in caught.value.remedy
    small = {"CPU": 16.0, "GPU": 1.0}
    with pytest.raises(
        ClusterError, match="no machine of the Ray cluster is large enough for one worker of the pool r"
    ):
        check_room(wanted, big, [small] * 9)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rollout_devices": 1.5}, "rollout_devices=1.5: Ray gives whole devices, or a share of a single one"),
        ({"trainer_devices": 2.25}, "trainer_devices=2.25: Ray gives whole devices"),
        ({"teacher_devices": 1e9}, r"teacher_devices=1e\+09 of one worker"),
        ({"reward_cpus": 1e-9}, "reward_cpus=1e-09 of one worker"),
        ({"teacher_cpus": 1e9}, r"teacher_cpus=1e\+09 of one worker"),
        ({"cpus": 10**9}, "cpus=1000000000 is above"),
        ({"object_store_mib": 1}, "object_store_mib=1: Ray needs 75 at least"),
        ({"objects_from_kib": -1}, "objects_from_kib=-1 is below 0"),
        ({"object_store_mib": -1}, "object_store_mib=-1: Ray needs 75 at least"),
        ({"object_store_mib": 999_999_999}, "object_store_mib=999999999: no machine has so much memory"),
        ({"bucket_mib": 0}, "bucket_mib=0 must be 1 or more"),
        ({"answer_timeout_s": -1.0}, "answer_timeout_s=-1 must be 1 or more"),
        ({"answer_timeout_s": 1e-9}, "answer_timeout_s=1e-09 must be 1 or more"),
        ({"address": "head"}, "launcher.options.address=head names no host and port"),
        ({"address": "http://head:6379"}, "names no host and port"),
        ({"address": "head:0"}, "names no host and port"),
    ],
)
def test_amounts_that_no_cluster_can_give(options, message):
    with pytest.raises(ConfigError, match=message) as caught:
        RayOptions(**options)
    assert caught.value.remedy
    for address in ("auto", "head:6379", "ray://head:10001", "[::1]:6379"):
        RayOptions(address=address)
    RayOptions(rollout_devices=0.25, teacher_devices=2.0, rollout_cpus=1.5, trainer_devices=0)


def test_settings_that_cannot_work_are_refused_before_anything_starts():
    def run(mode: str, launcher: str = "ray", replicas: int = 1, **options) -> RunConfig:
        return RunConfig(
            trainer=TrainerConfig(mode=mode),
            launcher=LauncherConfig(name=launcher, options=options),
            rollout=RolloutConfig(replicas=replicas),
        )

    _check_launcher(run("sync", replicas=3, rollout_devices=0), Source())
    with pytest.raises(ConfigError, match="rollout_devices=0: under trainer.mode=separate_async"):
        _check_launcher(run("separate_async", rollout_devices=0), Source())
    with pytest.raises(ConfigError, match="launcher.options.reward_cpus=-1 is below 0"):
        _check_launcher(run("sync", reward_cpus=-1), Source())
    parallel = run("sync", rollout_devices=1)
    engines = ("vllm", "tensor_parallel_size"), ("vllm_omni", "sequence_parallel_size")
    for device, (engine, size) in itertools.product(("cuda", "rocm:gfx942", "ascend"), engines):
        parallel.device.name, parallel.rollout.engine, parallel.rollout.options = device, engine, {size: 2}
        with pytest.raises(ConfigError, match=f"{engine} work on 2 devices, .*rollout_devices is 1") as wrong:
            _check_launcher(parallel, Source())
        assert wrong.value.remedy == "set launcher.options.rollout_devices=2"
    parallel.device.name = "cpu"
    _check_launcher(parallel, Source())
    both = run("sync", replicas=2, rollout_devices=0)
    both.actor.engine, both.actor.world_size, both.device.name = "fsdp2", 2, "cuda"
    _check_launcher(both, Source())
    both.rollout.replicas = 3
    with pytest.raises(ConfigError, match="replicas=3: .* shares the device of a rank, and actor.world_size=2"):
        _check_launcher(both, Source())
    both.rollout.replicas = 2
    both.launcher.options, both.teacher.placement = {"rollout_devices": 1, "teacher_devices": 0}, "pool"
    with pytest.raises(ConfigError, match="teacher_devices=0 shares the trainer's device, and .* has none"):
        _check_launcher(both, Source())
    both.launcher.options, both.teacher.placement = {"rollout_devices": 0}, "engine"
    both.rollout.engine, both.rollout.options = "vllm", {"tensor_parallel_size": 2}
    with pytest.raises(ConfigError, match="vllm works on 2 devices, and .* shares the one device of a rank"):
        _check_launcher(both, Source())
    both.device.name = "cpu"
    _check_launcher(both, Source())
    parallel.device.name, parallel.launcher.options = "cuda", {"rollout_devices": 2}
    _check_launcher(parallel, Source())
    lent = run("separate_async")
    lent.trainer.hybrid.enabled, lent.actor.engine = True, "fsdp2"
    with pytest.raises(ConfigError, match="the ranks of actor.engine=fsdp2 have theirs in processes of their own"):
        _check_launcher(lent, Source())
    with pytest.raises(
        CapabilityError, match="rollout.replicas=2: launcher.name=local runs every role in one"
    ) as caught:
        _check_launcher(run("sync", "local", replicas=2), Source())
    assert caught.value.choices == ("ray",)


def test_without_ray_the_error_names_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    for name in [name for name in sys.modules if name.startswith("omni_backends.launch.ray.")]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(PluginError, match=r"plugin 'ray' .* needs the module 'ray', which is not installed"):
        registry.load("launcher", "ray")


def test_what_strict_placements_need_is_known_before_anything_waits():
    pytest.importorskip("ray")
    from omni_backends.launch.ray.pools import Pool, check_room

    wanted = [Pool("reward", {"CPU": 1.0}, 3)]
    nodes = [{"CPU": 2.0}, {"CPU": 2.0}]
    for placement in ("pack", "spread"):
        check_room(wanted, {"CPU": 4.0}, nodes, placement)
    with pytest.raises(ClusterError, match=r"strict_spread: the pool reward: 3 x 1 CPU needs 3 machines, .* has 2"):
        check_room(wanted, {"CPU": 4.0}, nodes, "strict_spread")
    with pytest.raises(ClusterError, match="large enough for the whole pool reward") as refused:
        check_room(wanted, {"CPU": 4.0}, nodes, "strict_pack")
    assert "placement=pack" in refused.value.remedy
    check_room(wanted, {"CPU": 6.0}, [{"CPU": 3.0}, {"CPU": 3.0}], "strict_pack")
    with pytest.raises(ClusterError, match="larger than what the Ray cluster has free") as refused:
        check_room(wanted, {"CPU": 2.0}, nodes)
    assert "launcher.options.cpus" in refused.value.remedy
