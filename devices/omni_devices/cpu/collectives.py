"""Process groups over gloo, with deadlines and a self-test."""

from __future__ import annotations

import time
from datetime import timedelta

from omni_devices.cpu.profile import WEIGHT_CHANNELS
from omni_portable.contracts.errors import DeviceError, LifecycleError

SCHEMES = ("file://", "tcp://", "env://")


class GlooCollectives:
    """The collectives of the 'cpu' device; the default group belongs to the process, as in torch."""

    backend = "gloo"

    def init_process_group(self, rank: int, world_size: int, init_method: str, timeout_s: float = 600.0) -> None:
        """Join the default group; returns when all ranks have.

        Args:
            init_method: 'file:///PATH' (a path that does not exist yet, on a file system all ranks see),
                'tcp://127.0.0.1:PORT' or 'env://'.
            timeout_s: limit of joining, and of every later collective.

        Raises:
            LifecycleError: this process is in a group already.
            DeviceError: arguments that cannot work, or the others did not come in time.
        """
        import torch.distributed as dist

        if not 0 <= rank < world_size:
            raise DeviceError(f"rank {rank} does not exist in a group of {world_size}")
        if not init_method.startswith(SCHEMES):
            raise DeviceError(f"init_method '{init_method}' is of no known kind", choices=SCHEMES)
        if dist.is_initialized():
            raise LifecycleError(
                "this process is in a process group already", remedy="torch.distributed.destroy_process_group() first"
            )
        limit = timedelta(seconds=timeout_s)
        try:
            dist.init_process_group("gloo", init_method=init_method, rank=rank, world_size=world_size, timeout=limit)
        except (RuntimeError, ValueError) as error:
            raise DeviceError(
                f"rank {rank} of {world_size} could not join gloo at {init_method} within {timeout_s:g} s: {error}",
                remedy="start every rank with the same init_method; on one host set GLOO_SOCKET_IFNAME=lo",
            ) from error

    def self_test(self, timeout_s: float = 60.0) -> dict[str, float]:
        """Barrier, all_reduce, all_gather, reduce_scatter, broadcast and all_to_all on known fp32 inputs.

        Every rank must call it. The barrier comes first because it alone can say which rank is missing.

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

        if not dist.is_initialized():
            raise LifecycleError("no process group to test", remedy="call init_process_group first")
        return {"barrier": self._barrier(timeout_s)} | run_all(torch.device("cpu"), timeout_s)

    def weight_channels(self) -> tuple[str, ...]:
        """Ways to hand weights to another process: POSIX shared memory."""
        return WEIGHT_CHANNELS

    def _barrier(self, timeout_s: float) -> float:
        import torch.distributed as dist

        started = time.perf_counter()
        try:
            dist.monitored_barrier(timeout=timedelta(seconds=timeout_s), wait_all_ranks=True)
        except RuntimeError as error:
            raise DeviceError(
                f"rank {dist.get_rank()} of {dist.get_world_size()} waited {timeout_s:g} s at a barrier: {error}",
                remedy="look at the log of the rank that is missing",
            ) from error
        return time.perf_counter() - started
