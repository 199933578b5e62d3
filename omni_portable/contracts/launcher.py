"""The launcher seam: where roles live. The trainer's code is the same under every launcher."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from omni_portable.contracts.errors import OmniPortableError


@dataclass(frozen=True)
class Role:
    """One worker of a run, described so that any process can build it.

    Args:
        name: 'actor', 'rollout', 'reward' or 'teacher'; all replicas of a name form one pool.
        build: 'module:function', imported and called as ``function(config, **arguments)`` where the role lives.
        config: the run's configuration as plain data.
        replica: from 0; tells roles of one name apart.
        arguments: further plain data for `build`.
        here: objects of the trainer's process that `build` takes instead of making its own. Only a launcher that
            builds in the trainer's process hands them over.
        environment: variables of the role's process, set before anything is imported there.
        log: where the output of the role's own process is collected; None leaves it where the launcher puts it.
        ranks: processes that the role's engine works in beside the one that it is built in. A launcher that places
            processes starts them by the spawner that it adds to the `setup` of `here` (see `contracts.ranks`); under
            others they are children of that one.
        beside: name of the role whose device it shares, by turns; a launcher that places processes puts replicas of
            this role on the devices of different processes of that one, and starts them after it. '' shares none.
    """

    name: str
    build: str
    config: Mapping[str, Any] = field(default_factory=dict)
    replica: int = 0
    arguments: Mapping[str, Any] = field(default_factory=dict)
    here: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    log: Path | None = None
    ranks: int = 0
    beside: str = ""

    @property
    def label(self) -> str:
        """'rollout-0': how messages, logs and metrics speak of it."""
        return f"{self.name}-{self.replica}"


@runtime_checkable
class Launcher(Protocol):
    """Constructed as ``Launcher(options)``."""

    name: str

    def reserve(self, roles: Sequence[Role]) -> None:
        """Say what will be started, once, before the first start.

        Raises:
            ClusterError: there is no room for all of it; says what is asked for, what is there and what is missing.
        """
        ...

    def start(self, role: Role) -> Any:
        """Build a role where it belongs and return a handle with the role's own interface (`RolloutEngine`, ...).

        Raises:
            LifecycleError: the role is running.
        """
        ...

    def stop(self, role: Role) -> None:
        """End one role, whether or not its process still lives; afterwards it may be started again."""
        ...

    async def lost(self) -> OmniPortableError:
        """Return once what all roles live on is gone, with what that is; until then, wait. A single role that dies is
        not meant: its own calls say so."""
        ...

    def shutdown(self) -> None:
        """Stop only what this launcher started; safe to call twice."""
        ...
