"""Process groups of any backend of torch, with deadlines, missing ranks by name, and a self-test."""

from __future__ import annotations

import os
import time
from datetime import timedelta
from typing import TYPE_CHECKING

from omni_portable.contracts.errors import DeviceError, LifecycleError

if TYPE_CHECKING:
    import torch

SCHEMES = ("file://", "tcp://", "env://")
LONGEST_S = 10.0**9
"""Some thirty years; more overflows torch's clocks."""
NOBODY_S = 0.2
"""How long the self-test waits for a rank that does not exist, to see that a missing one is noticed."""


class DistCollectives:
    """Implements :class:`omni_portable.contracts.device.Collectives`; the default group belongs to the process.

    Args:
        backend: as torch.distributed knows it.
        torch_device_type: of the tensors that the backend moves.
        channels: ways to hand weights to another process.
        interface_hint: the variable that names the network interface ('GLOO_SOCKET_IFNAME'), or a sentence that says
            what to do where ranks do not find each other.
    """

    def __init__(self, backend: str, torch_device_type: str, channels: tuple[str, ...], interface_hint: str) -> None:
        self.backend = backend
        self._torch_device_type = torch_device_type
        self._channels = channels
        self.interface_variable = "" if " " in interface_hint else interface_hint
        self._hint = (
            interface_hint
            if " " in interface_hint
            else f"start every rank with the same init_method; set {interface_hint} to the network interface between "
            "them (lo on one host)"
        )

    def init_process_group(self, rank: int, world_size: int, init_method: str, timeout_s: float = 600.0) -> None:
        """Join the default group; returns when all ranks have.

        An accelerator's rank is bound to one device: the only visible one, else that of LOCAL_RANK, else the current.

        Args:
            init_method: 'file:///PATH' (a path that does not exist yet, on a file system all ranks see),
                'tcp://HOST:PORT' (an address of rank 0's machine, the only one that its store listens at) or 'env://'.
            timeout_s: limit of joining, and of every later collective.

        Raises:
            LifecycleError: this process is in a group already.
            DeviceError: arguments that cannot work, or others did not come in time; names those where it can.
        """
        import torch.distributed as dist

        if not 0 <= rank < world_size:
            raise DeviceError(f"rank {rank} does not exist in a group of {world_size}")
        if not init_method.startswith(SCHEMES):
            raise DeviceError(f"init_method '{init_method}' is of no known kind", choices=SCHEMES)
        _check_limit(timeout_s)
        if dist.is_initialized():
            raise LifecycleError(
                "this process is in a process group already", remedy="torch.distributed.destroy_process_group() first"
            )
        device = self._bind()
        try:
            self._join(rank, world_size, init_method, timeout_s, device)
        except (RuntimeError, ValueError, OSError) as error:
            hints = [self._hint]
            if init_method.startswith("file://"):
                hints.append("name a file that no earlier job has left behind")
            if device is not None:
                hints.append("give each rank of a host its own LOCAL_RANK")
            raise DeviceError(
                f"rank {rank} of {world_size} could not join {self.backend} at {init_method} within {timeout_s:g} s: "
                f"{error}",
                remedy="; ".join(hints),
            ) from error

    def self_test(self, timeout_s: float = 60.0) -> dict[str, float]:
        """Barrier, all_reduce, all_gather, reduce_scatter, broadcast and all_to_all on known fp32 inputs.

        Every rank must call it. Ranks meet at the store first, because only that says which rank is missing; a rank
        that does not exist is waited for, too, and has to be missed in time ('barrier_timeout').

        Args:
            timeout_s: limit of each collective.

        Returns:
            Seconds per collective on this rank.

        Raises:
            LifecycleError: no process group.
            DeviceError: a rank is missing, or a collective is late or wrong; names it.
        """
        import torch
        import torch.distributed as dist

        from omni_devices.common.collective_check import run_all

        _check_limit(timeout_s)
        if not dist.is_initialized():
            raise LifecycleError("no process group to test", remedy="call init_process_group first")
        device = torch.device(self._torch_device_type)
        if device.type != "cpu":
            device = torch.device(device.type, torch.get_device_module(device).current_device())
        seconds = {"barrier": self._barrier(device, timeout_s), "barrier_timeout": self._miss_nobody()}
        return seconds | run_all(device, timeout_s)

    def weight_channels(self) -> tuple[str, ...]:
        """Ways to hand weights to another process."""
        return self._channels

    def _bind(self) -> torch.device | None:
        """The device of this rank, made the current one; None on the host."""
        import torch

        if self._torch_device_type == "cpu":
            return None
        module = torch.get_device_module(self._torch_device_type)
        count = module.device_count()
        local_rank = "0" if count == 1 else os.environ.get("LOCAL_RANK") or str(module.current_device())
        if not local_rank.isdecimal():
            raise DeviceError(f"LOCAL_RANK is '{local_rank}', not the number of a rank", remedy="set it, or unset it")
        index = int(local_rank)
        if index >= count:
            raise DeviceError(
                f"this process is local rank {index} (LOCAL_RANK), but {count} devices are visible to it",
                remedy="start as many ranks on a host as it has devices, or make all of them visible",
            )
        module.set_device(index)
        return torch.device(self._torch_device_type, index)

    def _join(
        self, rank: int, world_size: int, init_method: str, timeout_s: float, device: torch.device | None
    ) -> None:
        """Meet at the store before the backend connects: some connect without a deadline.

        Raises:
            RuntimeError: somebody is missing, or the backend cannot connect.
        """
        import torch.distributed as dist

        from omni_devices.common.rendezvous import meet, named, open_store

        limit = timedelta(seconds=timeout_s)
        store = open_store(init_method, rank, world_size, timeout_s)
        store.set_timeout(limit)
        store = dist.PrefixStore("omni_portable", store)
        if absent := meet(store, "join", rank, range(world_size), timeout_s):
            raise RuntimeError(f"{named(absent)} did not come")
        dist.init_process_group(
            self.backend, store=store, rank=rank, world_size=world_size, timeout=limit, device_id=device
        )

    def _barrier(self, device: torch.device, timeout_s: float) -> float:
        import torch.distributed as dist
        from torch.distributed.distributed_c10d import _get_default_store

        from omni_devices.common.collective_check import finish
        from omni_devices.common.rendezvous import meet, named

        started, where = time.perf_counter(), f"rank {dist.get_rank()} of {dist.get_world_size()}"
        try:
            absent = meet(_get_default_store(), "barrier", dist.get_rank(), range(dist.get_world_size()), timeout_s)
            if absent:
                raise RuntimeError(f"{named(absent)} did not come")
            work = dist.barrier(async_op=True, device_ids=None if device.type == "cpu" else [device.index])
            finish(work, timeout_s, device)
        except RuntimeError as error:
            raise DeviceError(
                f"{where} waited {timeout_s:g} s at a barrier: {error}",
                remedy="look at the log of the rank that is missing",
            ) from error
        return time.perf_counter() - started

    def _miss_nobody(self) -> float:
        import torch.distributed as dist
        from torch.distributed.distributed_c10d import _get_default_store

        from omni_devices.common.rendezvous import absent

        started, nobody = time.perf_counter(), dist.get_world_size()
        if absent(_get_default_store(), "barrier_timeout", 1, [nobody], NOBODY_S) != [nobody]:
            raise DeviceError(
                f"a barrier did not miss rank {nobody} of a group of {nobody}",
                remedy="give the job a store (init_method) of its own; this one holds keys of another",
            )
        return time.perf_counter() - started


def _check_limit(timeout_s: float) -> None:
    """Raise `DeviceError` for a limit that no clock can hold."""
    if not 0 < timeout_s <= LONGEST_S:
        raise DeviceError(f"a limit of {timeout_s:g} s cannot be waited for", remedy="give seconds above 0")
