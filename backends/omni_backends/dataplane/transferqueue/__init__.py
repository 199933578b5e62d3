"""Groups in storage processes of their own (TransferQueue). Loads without torch, Ray and TransferQueue."""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

from omni_backends.launch.ray.address import check_address
from omni_portable.config.modes import SYNC
from omni_portable.config.schema import RunConfig
from omni_portable.contracts.errors import ConfigError, PluginError
from omni_portable.contracts.registry import PluginSpec

PACKAGE = "TransferQueue"
VERSION = "0.1.11"
"""The one version that is supported; its internals changed in every release so far."""

MOST_UNITS = 4096
QUEUE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


@dataclass(frozen=True)
class TransferQueueOptions:
    storage_units: int = 2
    """Storage processes, spread over the machines of the cluster."""
    capacity_groups: int = 4096
    """Groups that may wait at a time."""
    capacity_mib: int = 8192
    """Memory that waiting groups may take altogether; the limit of one group too."""
    objects_from_kib: int = 64
    """Columns of a group from this size on wait in Ray's object store, smaller ones in the storage processes; 0: all of
    them there, which is slower, for clusters with little shared memory."""
    queue: str = ""
    """Name under which groups wait beyond the death of this process, on a cluster that outlives it; who starts with the
    same name finds them. Empty: they belong to this process alone and end with it."""
    address: str = ""
    """Ray cluster, as in launcher.options.address, where the launcher brings none."""
    room_timeout_s: float = 3600.0
    """Seconds that a producer waits for room before it says that nobody takes anything out."""
    answer_timeout_s: float = 120.0
    """Seconds that TransferQueue may take for one group."""

    def __post_init__(self) -> None:
        for name in ("storage_units", "capacity_groups", "capacity_mib", "room_timeout_s", "answer_timeout_s"):
            if getattr(self, name) <= 0:
                raise ConfigError(
                    f"dataplane.options.{name}={getattr(self, name):g} must be above 0",
                    remedy=f"leave it out for {getattr(type(self), name):g}",
                )
        if self.objects_from_kib < 0:
            raise ConfigError(
                f"dataplane.options.objects_from_kib={self.objects_from_kib} is below 0",
                remedy="give a size in KiB, or 0 to keep groups out of Ray's object store",
            )
        if self.storage_units > MOST_UNITS:
            raise ConfigError(
                f"dataplane.options.storage_units={self.storage_units} is above {MOST_UNITS}",
                remedy="one or two for each machine are enough",
            )
        if self.queue and not QUEUE.fullmatch(self.queue):
            raise ConfigError(
                f"dataplane.options.queue={self.queue!r} is no name of a queue",
                remedy="use up to 128 letters, digits, dots, dashes and underscores, the first a letter or digit",
            )
        check_address(self.address, "dataplane.options.address")

    def check(self, config: RunConfig) -> None:
        """Refuse what cannot run, before anything loads.

        Raises:
            PluginError: TransferQueue is missing, or of another version.
            ConfigError: there is no room for what must wait at the same time.
        """
        check_installed()
        if self.address and config.launcher.name == "ray" and self.address != config.launcher.options.get("address"):
            raise ConfigError(
                f"dataplane.options.address={self.address}: with launcher.name=ray groups wait on the "
                "launcher's cluster",
                remedy="leave it out, and name the cluster in launcher.options.address",
            )
        batch, ahead = config.data.train_batch_size, config.dataplane.max_staleness
        rounds = 1 if config.trainer.mode == SYNC else ahead + 1
        if self.capacity_groups < batch * rounds:
            raise ConfigError(
                f"dataplane.options.capacity_groups={self.capacity_groups}: {batch * rounds} groups wait at the same "
                f"time (data.train_batch_size={batch}, dataplane.max_staleness={ahead})",
                remedy=f"set it to {batch * rounds} or more",
            )


def check_installed() -> None:
    """
    Raises:
        PluginError: TransferQueue is missing, or of another version.
    """
    remedy = f"pip install 'omni-portable[transferqueue]' (which has {PACKAGE}=={VERSION}), or set dataplane.name=local"
    try:
        found = version(PACKAGE)
    except PackageNotFoundError as error:
        raise PluginError(
            f"dataplane.name=transferqueue needs {PACKAGE} {VERSION}, which is not installed", remedy=remedy
        ) from error
    if found != VERSION:
        raise PluginError(
            f"dataplane.name=transferqueue needs {PACKAGE} {VERSION}; installed is {found}", remedy=remedy
        )


SPEC = PluginSpec(
    name="transferqueue",
    summary="keeps groups in storage processes of their own, on one machine or many, with bounded memory",
    target="omni_backends.dataplane.transferqueue.plane:TransferQueuePlane",
    options=TransferQueueOptions,
    capabilities={"multi_process": True, "persistent": True},
    extra="transferqueue",
)
