"""Joining a cluster or starting one: what is refused at once, and in which words; no cluster is needed."""

from __future__ import annotations

import logging
import re
import shutil
import socket
import subprocess
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest

from omni_backends.launch.ray import RayOptions
from omni_portable.contracts.errors import ClusterError, ConfigError, RunDirectoryError


def test_a_head_that_is_down_is_named_at_once():
    pytest.importorskip("ray")
    from omni_backends.launch.ray.launcher import RayLauncher

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    for address in (f"127.0.0.1:{port}", f"ray://127.0.0.1:{port}"):
        with pytest.raises(ClusterError, match=f"{address}: nothing answers there"):
            RayLauncher(RayOptions(address=address)).reserve([])
    for address in (
        "somewhere",
        "host:99999999",
        "host:70000",
        "host:0",
        "host:\u00b2",
        ":6379",
        "6379",
        "local",
        "ray://",
    ):
        with pytest.raises(ConfigError, match="names no host and port"):
            RayOptions(address=address)
    for address in ("a..b:6379", f"{'x' * 70}.test:6379"):
        with pytest.raises(ClusterError, match="nothing answers there"):
            RayLauncher(RayOptions(address=address)).reserve([])


def test_nobody_is_told_to_turn_the_token_off():
    pytest.importorskip("ray")
    from ray._private.authentication import authentication_token_setup as setup

    from omni_backends.launch.ray.cluster import HINTS, _without_hints

    assert setup.logger.name == HINTS
    before = setup.logger.getEffectiveLevel()
    with _without_hints():
        assert not setup.logger.isEnabledFor(logging.WARNING)
    assert setup.logger.getEffectiveLevel() == before


def test_a_node_that_ended_while_it_started_is_not_waited_for(monkeypatch, tmp_path):
    pytest.importorskip("ray")
    from ray._private import services

    from omni_backends.launch.ray import cluster

    def nothing(*_: object) -> None:
        raise RuntimeError("no node yet")

    monkeypatch.setattr(services, "get_node", nothing)
    with cluster._patience(0.0), pytest.raises(RuntimeError, match="no node yet"):
        services.get_node("address", "node")
    sleep = shutil.copy(shutil.which("sleep"), tmp_path / cluster.NODE)
    with cluster._patience(600.0), subprocess.Popen([sleep, "600"]) as node, ThreadPoolExecutor(1) as pool:
        try:
            asked = pool.submit(services.get_node, "address", "node")
            with pytest.raises(TimeoutError):
                asked.result(3.0)
        finally:
            node.kill()
        with pytest.raises(cluster.NodeEndedError, match="raylet.* ended while it started"):
            asked.result(60.0)
    assert services.get_node is nothing


def test_an_address_of_the_environment_is_called_so(monkeypatch):
    pytest.importorskip("ray")
    from omni_backends.launch.ray.cluster import connect

    monkeypatch.setenv("RAY_ADDRESS", "local")
    with pytest.raises(ClusterError, match=r"^RAY_ADDRESS=local \(environment\) names no host and port"):
        connect(RayOptions(), 1)


@pytest.mark.parametrize("answer", [b"HTTP/1.0 400 Bad Request\r\n\r\n", b"", None], ids=["http", "closes", "silent"])
@pytest.mark.parametrize("scheme", ["", "ray://"])
def test_a_port_of_something_else_is_said_to_be_that(answer, scheme, monkeypatch):
    pytest.importorskip("ray")
    from omni_backends.launch.ray import cluster

    monkeypatch.setattr(cluster, "KNOCK_S", 1.0)
    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor(1) as threads:

        def serve() -> None:
            with server.accept()[0] as one:
                one.recv(64)
                if answer is not None:
                    one.sendall(answer)
                else:
                    one.recv(64)  # until the other side has left

        serving = threads.submit(serve)
        said = "nothing answers there .*timed out" if answer is None else "what answers there is no Ray cluster"
        address = f"{scheme}127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(ClusterError, match=f"^launcher.options.address={address}: {said}"):
            cluster.connect(RayOptions(address=address), 1)
        serving.result(10.0)


def test_a_full_or_closed_disk_of_sessions_is_named(monkeypatch, tmp_path):
    """No cluster is started there, and errors about Ray's processes and objects say so."""
    pytest.importorskip("ray")
    from omni_backends.launch.ray import disk
    from omni_backends.launch.ray.cluster import connect

    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    error = disk.of_ray(ClusterError, "it is gone", "look")
    assert (error.problem, error.remedy) == ("it is gone", "look")
    free = psutil.disk_usage(str(tmp_path))._replace(free=3 << 20)
    monkeypatch.setattr(psutil, "disk_usage", lambda path: free)
    full = rf"session directory has 3 MiB left \({tmp_path}/ray\), and Ray needs 64"
    with pytest.raises(ClusterError, match=f"^no Ray cluster can be started on this machine: the .*{full}") as refused:
        connect(RayOptions(), 1)
    assert "RAY_TMPDIR" in refused.value.remedy
    error = disk.of_ray(ClusterError, "it is gone", "look")
    assert re.search(f"^it is gone; the disk of .*{full}", error.problem)
    assert re.fullmatch("free some space.*; then look", error.remedy)
    monkeypatch.undo()
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path / ("long" * 20)))
    with pytest.raises(
        ClusterError, match="the name of .*long/ray, has .* characters, .* leave room for 43"
    ) as refused:
        connect(RayOptions(), 1)
    assert "shorter name" in refused.value.remedy
    (tmp_path / "file").touch()
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path / "file"))
    with pytest.raises(RunDirectoryError, match="cannot write .*/file/ray: Not a directory"):
        connect(RayOptions(), 1)


def test_an_object_store_beyond_the_memory_is_refused_at_once(monkeypatch):
    pytest.importorskip("ray")
    from omni_backends.launch.ray.cluster import connect

    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with pytest.raises(ClusterError, match="object_store_mib=16777216 is more than this machine's memory"):
        connect(RayOptions(object_store_mib=16 << 20), 1)
