"""What is asked of a Ray cluster, and addresses where none answers; no cluster is needed."""

from __future__ import annotations

import socket
import sys

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


def test_what_is_missing_is_said_by_resource_and_by_machine():
    pytest.importorskip("ray")
    from omni_backends.launch.ray.pools import check_room, pools

    wanted = pools(roles("cuda", 4), RayOptions(rollout_devices=2))
    big = {"CPU": 64.0, "GPU": 9.0}
    check_room(wanted, big, [big])
    with pytest.raises(ClusterError, match=r"missing are 1 GPU \(of 9\); asked for are actor: 1 x 1 GPU; rollout: 4 x"):
        check_room(wanted, big | {"GPU": 8.0}, [big])
    small = {"CPU": 16.0, "GPU": 1.0}
    with pytest.raises(
        ClusterError, match="no machine of the Ray cluster is large enough for one worker of the pool r"
    ):
        check_room(wanted, big, [small] * 9)


def test_a_head_that_is_down_is_named_at_once():
    pytest.importorskip("ray")
    from omni_backends.launch.ray.launcher import RayLauncher

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    for address in (f"127.0.0.1:{port}", f"ray://127.0.0.1:{port}"):
        with pytest.raises(ClusterError, match=f"{address}: nothing answers there"):
            RayLauncher(RayOptions(address=address)).reserve([])
    with pytest.raises(ClusterError, match="names no host and port"):
        RayLauncher(RayOptions(address="somewhere")).reserve([])


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
    with pytest.raises(ConfigError, match="launcher.options.reward_cpus=-1.0 is below 0"):
        _check_launcher(run("sync", reward_cpus=-1), Source())
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
