"""Joining a Ray cluster, or starting one for this run that nobody outside this machine can reach."""

from __future__ import annotations

import ipaddress
import logging
import os
import secrets
import signal
import socket
import threading
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import ray
from ray._private import ray_constants, services

from omni_backends.launch.ray import SMALLEST_STORE_MIB, RayOptions
from omni_backends.launch.ray.address import FORMS, host_and_port
from omni_backends.launch.ray.disk import check_disk, full_disk, of_ray
from omni_portable.contracts.errors import ClusterError

log = logging.getLogger(__name__)

LOOPBACK = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
"""Makes Ray take the loopback address for the machine's own on every system, as it does on macOS and Windows; all of
its servers then listen there only. (An explicit loopback address is replaced by Ray with the machine's outward one.)"""

WITHOUT_HEAD = {"RAY_gcs_rpc_server_reconnect_timeout_s": "3600"}
"""Seconds after which Ray aborts a process whose head is gone: by itself after 60, in the middle of an update that
takes longer. The run is ended in order long before (see `head.py`)."""
EVEN = {"RAY_worker_niceness": "0"}
"""Workers of a cluster that is started here wait for the processor as the trainer does. Ray gives them the niceness 15,
with which rollout, rewards and the data plane stand still while the trainer computes on the same cores."""
HINTS = "ray._private.authentication.authentication_token_setup"
"""Logger of Ray's hints about tokens."""
HTTP2_SETTINGS = bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
HTTP2_GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + HTTP2_SETTINGS
"""How both sides of gRPC begin (RFC 9113, section 3.4): the client with this, the server with its settings (type 4)."""
KNOCK_S = 10.0
LEAVE_S = 20.0
"""For leaving a cluster that is lost, after which what is left of it is killed."""
PATIENCE_S = 240.0
ATTEMPTS = 4
"""To start a cluster: on a busy machine a part of Ray may miss a deadline of another."""
NODE = "raylet"
"""Ray's process on every machine; it ends when its helpers do not come up within some 15 seconds."""


class NodeEndedError(Exception):
    """Ray's process on this machine ended while it started. (No RuntimeError: after one Ray would go on asking.)"""


@dataclass(frozen=True)
class Connection:
    """How this process came to its cluster, and so what must be undone.

    Args:
        address: for people.
        started: the cluster was started here and ends with this connection.
        joined: this process was not connected before.
        listeners: of a cluster that was started here: 'process address:port' of every server.
        before: processes below this one that were there before the cluster that was started here.
    """

    address: str
    started: bool
    joined: bool
    listeners: tuple[str, ...] = ()
    before: frozenset[int] = frozenset()

    def close(self, lost: bool = False) -> None:
        """End what was begun by :func:`connect`, and nothing else.

        Args:
            lost: the cluster is gone; what is left of one that was started here is ended without asking it.
        """
        leaves = self.joined and ray.is_initialized()
        if lost and self.started:
            if leaves and any(True for _ in _nodes()):
                # Ray ends this process where its own on this machine is killed while it takes leave of it.
                late = threading.Timer(LEAVE_S, _end_ray_processes, [self.before])
                late.start()
                ray.shutdown()
                late.cancel()
            _end_ray_processes(self.before)
        if leaves and ray.is_initialized():
            ray.shutdown()


def connect(options: RayOptions, cpus: int, key: str = "launcher.options.address") -> Connection:
    """Use the connection that this process has, or join the cluster that is named, or start one here.

    Args:
        cpus: of a cluster that is started here.
        key: what the address is called in errors.

    Raises:
        ClusterError: the cluster cannot be reached, or one that was started here can be reached from outside.
    """
    if ray.is_initialized():
        return _joined_already(options.address)
    if address := options.address:
        return _join(address, f"{key}={address}")
    if address := os.environ.get("RAY_ADDRESS", ""):
        return _join(address, f"RAY_ADDRESS={address} (environment)")
    return _start(options, cpus)


def _joined_already(address: str) -> Connection:
    here = ray.get_runtime_context().gcs_address
    if address not in ("", "auto", here):
        said = f"launcher.options.address={address}"
        _knock(address, said)
        raise ClusterError(
            f"{said}, but this process is connected to the Ray cluster at {here} already",
            remedy="leave the address out, or run in a process of its own",
        )
    return Connection(here, started=False, joined=False)


def _join(address: str, said: str) -> Connection:
    """
    Args:
        said: what errors call the address.
    """
    if address == "auto":
        address = _found(said)
        said = f"{said} ({address})"
    _knock(address, said)
    try:
        with _loopback() if _on_loopback(address) else nullcontext():
            _init(address=address, log_to_driver=False, configure_logging=False)
    except (ConnectionError, RuntimeError, ValueError) as error:
        client = "; for ray:// start the head with GRPC_ENABLE_FORK_SUPPORT=0" if address.startswith("ray://") else ""
        raise ClusterError(
            f"{said}: no Ray cluster can be joined there: {' '.join(str(error).split())[-300:]}",
            remedy="start one (`ray start --head`), mend the address, or leave it out to have one started for this "
            "run; a cluster with a token (that of another run has one, too) takes RAY_AUTH_MODE=token and its "
            f"RAY_AUTH_TOKEN_PATH{client}",
        ) from error
    log.info("joined the Ray cluster at %s", address)
    here = address if address.startswith("ray://") else ray.get_runtime_context().gcs_address
    return Connection(here, started=False, joined=True)


def _found(said: str) -> str:
    """Address of the cluster on this machine, as Ray finds it; RAY_ADDRESS comes first."""
    try:
        return str(services.get_ray_address_from_environment("auto", None))
    except ConnectionError as error:
        raise ClusterError(
            f"{said}: no Ray cluster runs on this machine",
            remedy="start one (`ray start --head`), give its address, or leave it out to have one started for this run",
        ) from error


def _init(**arguments: Any) -> None:
    """`ray.init`, which takes SIGTERM over for a driver that only ends: the handler that is there stays."""
    handler = signal.getsignal(signal.SIGTERM)
    try:
        with _environment(_unset(WITHOUT_HEAD)):
            ray.init(**arguments)
    finally:
        if threading.current_thread() is threading.main_thread() and handler is not None:
            signal.signal(signal.SIGTERM, handler)


def _knock(address: str, said: str) -> None:
    """A head that is gone is found out at once instead of after a minute of attempts."""
    if (found := host_and_port(address)) is None:
        raise ClusterError(f"{said} names no host and port", remedy=FORMS)
    try:
        with socket.create_connection(found, timeout=KNOCK_S) as asking:
            is_ray = os.environ.get("RAY_USE_TLS", "0") != "0" or _speaks_grpc(asking)
    except (OSError, UnicodeError) as error:  # the latter of names that cannot be one of a host
        raise ClusterError(
            f"{said}: nothing answers there ({error}); the head of the cluster is down, or this is not its address",
            remedy="start it (`ray start --head`), mend the address, or leave it out to have one started for this run",
        ) from error
    if not is_ray:
        raise ClusterError(
            f"{said}: what answers there is no Ray cluster",
            remedy="give the address of its head (port 6379 unless `ray start` was told another), or ray:// and that "
            "of its client server (10001)",
        )


def _speaks_grpc(asking: socket.socket) -> bool:
    """Does a server greet as those of Ray do? Anything else Ray would ask for an hour without a word."""
    asking.sendall(HTTP2_GREETING)
    with asking.makefile("rb") as answers:
        header = answers.read(len(HTTP2_SETTINGS))
    return header[3:5] == HTTP2_SETTINGS[3:5]


def _on_loopback(address: str) -> bool:
    """A cluster that listens there only is looked for elsewhere by Ray, unless it is told."""
    host = address.removeprefix("ray://").rpartition(":")[0].strip("[]")
    return host == "localhost" or host.startswith("127.") or host == "::1"


def _start(options: RayOptions, cpus: int) -> Connection:
    memory = psutil.virtual_memory().total
    if options.object_store_mib << 20 > memory:
        raise ClusterError(
            f"launcher.options.object_store_mib={options.object_store_mib} is more than this machine's memory "
            f"({memory >> 20} MiB)",
            remedy=f"give {SMALLEST_STORE_MIB} to {memory >> 21} MiB; 512 is enough for images",
        )
    check_disk()
    if "RAY_AUTH_TOKEN_PATH" not in os.environ:
        os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))  # of this process, never written to a file
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    for attempt in range(ATTEMPTS, 0, -1):
        try:
            with _loopback(), _environment(_unset(EVEN)), _patience(PATIENCE_S), _without_hints():
                _init(
                    address="local",
                    num_cpus=cpus,
                    include_dashboard=False,
                    log_to_driver=False,
                    configure_logging=False,
                    object_store_memory=options.object_store_mib << 20,
                )
            break
        except Exception as error:  # noqa: BLE001 - Ray raises bare ones where a part of it is late
            _end_ray_processes(before)
            if attempt == 1 or full_disk():
                many = f"in {ATTEMPTS + 1 - attempt} attempts"
                raise of_ray(
                    ClusterError,
                    f"no Ray cluster could be started on this machine {many}: {error}",
                    "try again when the machine has less to do, or start a cluster yourself and give its address "
                    "(launcher.options.address)",
                ) from error
            log.warning("the Ray cluster did not start (%s); trying again", error)
    address = ray.get_runtime_context().gcs_address
    found = [(name, ip, port) for pid, name, ip, port in _listening() if pid not in before]
    open_ones = [f"{name} {ip}:{port}" for name, ip, port in found if not is_loopback(ip)]
    if open_ones:
        ray.shutdown()
        raise ClusterError(
            f"the Ray cluster that was started for this run listens on addresses that other machines can reach: "
            f"{', '.join(open_ones)}",
            remedy="use the Ray version that the project pins, or start a cluster yourself and give its address "
            "(launcher.options.address)",
        )
    listeners = tuple(f"{name} {ip}:{port}" for name, ip, port in found)
    token = "asks for a token" if os.environ.get("RAY_AUTH_MODE", "") == "token" else "asks for no token"
    log.info("started a Ray cluster at %s, which %s; its servers listen on loopback only", address, token)
    for listener in listeners:
        log.info("listening: %s", listener)
    return Connection(address, True, True, listeners, frozenset(before))


@contextmanager
def _loopback() -> Iterator[None]:
    """For Ray in this process, which may be imported already, and for the processes it starts."""
    constant = ray_constants.ENABLE_RAY_CLUSTER
    ray_constants.ENABLE_RAY_CLUSTER = False
    try:
        with _environment(LOOPBACK):
            yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = constant


def _unset(values: Mapping[str, str]) -> dict[str, str]:
    """Those that whoever called the command has not set."""
    return {name: value for name, value in values.items() if name not in os.environ}


@contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    """Variables that are set for a while."""
    former = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in former.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@contextmanager
def _patience(seconds: float) -> Iterator[None]:
    """Ray gives its node half a minute to come up, and no setting for that; a busy machine may need longer. One whose
    process has ended is not waited for."""
    look, deadline, before, seen = services.get_node, time.monotonic() + seconds, set(_nodes()), False

    def wait_for_node(*arguments: Any, **named: Any) -> Any:
        nonlocal seen
        while True:
            try:
                return look(*arguments, **named)
            except RuntimeError as error:
                lives = bool(set(_nodes()) - before)
                if seen and not lives:
                    raise NodeEndedError("its process on this machine (raylet) ended while it started") from error
                if time.monotonic() > deadline:
                    raise
                seen = seen or lives
                time.sleep(0.5)

    services.get_node = wait_for_node
    try:
        yield
    finally:
        services.get_node = look


@contextmanager
def _without_hints() -> Iterator[None]:
    """Ray tells whoever starts a cluster how to turn its token off; here it protects workers that run anything."""
    hints = logging.getLogger(HINTS)
    level = hints.level
    hints.setLevel(logging.ERROR)
    try:
        yield
    finally:
        hints.setLevel(level)


def _nodes() -> Iterator[int]:
    """Children of this process that are Ray's own of this machine."""
    for process in psutil.Process().children():
        with suppress(psutil.NoSuchProcess):
            if process.name() == NODE and process.status() != psutil.STATUS_ZOMBIE:
                yield process.pid


def _end_ray_processes(before: Collection[int]) -> None:
    """What a start that failed left behind: Ray's processes among the descendants that were not there before."""
    for process in psutil.Process().children(recursive=True):
        try:
            words = [] if process.pid in before else process.cmdline()
            if any("ray" in Path(word).parts or word.startswith("ray::") for word in words):
                process.kill()
        except psutil.NoSuchProcess:
            continue


def _listening() -> Iterator[tuple[int, str, str, int]]:
    """(pid, process, address, port) of every TCP server of this process and its descendants."""
    here = psutil.Process()
    for process in (here, *here.children(recursive=True)):
        try:
            name = process.name()
            connections = process.net_connections(kind="tcp")
        except psutil.NoSuchProcess:
            continue
        for connection in connections:
            if connection.status == psutil.CONN_LISTEN:
                yield process.pid, name, connection.laddr.ip, connection.laddr.port


def is_loopback(ip: str) -> bool:
    """Is it an address that only this machine reaches?"""
    address = ipaddress.ip_address(ip)
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback
