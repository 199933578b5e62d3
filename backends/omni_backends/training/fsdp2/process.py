"""What runs in a rank's process: join the group, build the rank, answer commands until told to end."""

from __future__ import annotations

import faulthandler
import importlib
import multiprocessing
import os
import signal
import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from typing import Any

import torch
import torch.distributed as dist

from omni_backends.training.fsdp2.channel import Channel
from omni_backends.training.fsdp2.failure import Failure, RankError
from omni_backends.training.fsdp2.message import from_bytes, to_bytes, to_parts
from omni_backends.training.fsdp2.rank import COMMANDS, HANDED_ON, Fsdp2Rank
from omni_portable.config.schema import RunConfig
from omni_portable.contracts import registry
from omni_portable.contracts.algorithm import Requires
from omni_portable.contracts.device import Device
from omni_portable.contracts.model import ModelLoad
from omni_portable.contracts.ranks import Parts, RankPlace, Serve
from omni_portable.models.setup import EngineSetup

ORPHANED = 71
"""Exit code of a rank whose driver is gone."""


@dataclass(frozen=True)
class RankSpec:
    """All that a process needs to become a rank.

    Args:
        config / load / requires: of the engine's setup.
        device / generation: name of the device plugin, and the generation that the driver found.
        threads: CPU threads for arithmetic of all ranks of one machine.
        rank_class: 'module:class' of the rank, for engines that build theirs otherwise.
    """

    config: RunConfig
    load: ModelLoad
    requires: Requires
    device: str
    generation: str
    threads: int
    rank_class: str = "omni_backends.training.fsdp2.rank:Fsdp2Rank"


def rank_main(spec: RankSpec, place: RankPlace, connection: Connection) -> None:
    """Entry point of a child; answers 'ready' or a failure first, then one answer per command."""
    faulthandler.enable()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the driver decides what an interrupt means
    _end_with_parent()
    channel = Channel(connection)
    try:
        os.environ.update(registry.load("device", spec.device)(spec.generation).environment("actor"))
        built = _build(spec, place)
    except Exception as error:  # noqa: BLE001 - it is raised in the driver, whatever it is
        channel.send(Failure.of(error))
        return
    channel.send(("ready", built.facts()))
    _serve(channel, built)
    dist.destroy_process_group()


def served(blob: bytes, place: RankPlace) -> tuple[bytes, Serve | None]:
    """Entry point in a process that a launcher placed (a `contracts.ranks.RankEntry`).

    Args:
        blob: the `RankSpec`, as `message.to_bytes` makes it. The device's variables came with the process.
    """
    faulthandler.enable()
    try:
        built = _build(from_bytes(blob), place)
    except Exception as error:  # noqa: BLE001 - it is raised in the driver, whatever it is
        return to_bytes(Failure.of(error)), None

    def serve(message: bytes, parts: Sequence[Parts]) -> tuple[bytes, Parts]:
        command = from_bytes(message, parts)
        if command is None:
            dist.destroy_process_group()
            return to_bytes(("done", None)), []
        method, arguments = command
        answer = _answer(built, method, arguments)
        return to_parts(answer) if method in HANDED_ON else (to_bytes(answer), [])

    return to_bytes(("ready", built.facts())), serve


def _build(spec: RankSpec, place: RankPlace) -> Fsdp2Rank:
    device = registry.load("device", spec.device)(spec.generation)
    os.environ["LOCAL_RANK"] = str(place.device_index)
    if place.interface:
        _use_interface(device, place.interface)
    torch.set_num_threads(max(1, spec.threads // place.neighbours))
    if spec.config.device.deterministic:
        device.determinism.enable(spec.config.trainer.seed)
    device.collectives.init_process_group(place.rank, place.count, place.init_method, spec.config.actor.rank_timeout_s)
    index = place.device_index if device.torch_device_type != "cpu" else 0
    load = replace(spec.load, torch_device=device.torch_device(index))
    module, _, name = spec.rank_class.partition(":")
    rank_class: type[Fsdp2Rank] = getattr(importlib.import_module(module), name)
    return rank_class(EngineSetup(spec.config, device, load, spec.requires), place.rank, place.count)


def _use_interface(device: Device, interface: str) -> None:
    """Have ranks of several machines talk over the interface between them, unless the user chose one: the device's own
    default serves one machine."""
    variable = device.collectives.interface_variable
    if variable and os.environ.get(variable) in (None, device.environment("actor").get(variable)):
        os.environ[variable] = interface


def _serve(channel: Channel, rank: Fsdp2Rank) -> None:
    while True:
        try:
            command = channel.receive()
        except (EOFError, OSError):  # the driver has closed its end
            return
        if command is None:
            return
        answer = _answer(rank, *command)
        try:
            channel.send(answer)
        except RankError as error:  # no room for what the answer holds
            channel.send(Failure.of(error))


def _answer(rank: Fsdp2Rank, method: str, arguments: dict[str, Any]) -> Any:
    try:
        if method not in COMMANDS:
            raise ValueError(f"'{method}' is no command of a rank")
        return ("done", getattr(rank, method)(**arguments))
    except Exception as error:  # noqa: BLE001 - it is raised in the driver, whatever it is
        return Failure.of(error)


def _end_with_parent() -> None:
    """A rank that waits for others in a collective would outlive a driver that was killed."""
    parent = multiprocessing.parent_process()
    if parent is None:
        return
    sentinel = parent.sentinel

    def watch() -> None:
        wait([sentinel])
        os._exit(ORPHANED)

    threading.Thread(target=watch, name="parent-watch", daemon=True).start()
