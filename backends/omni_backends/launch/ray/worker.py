"""The trainer's side of one worker process: calls, and Ray's errors in our words."""

from __future__ import annotations

import logging
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, NodeDiedError, ObjectLostError, RayActorError, RayError

from omni_backends.launch.ray.wire import value
from omni_portable.contracts.errors import ClusterError, OmniPortableError, WorkerLostError

log = logging.getLogger(__name__)


class Worker:
    """A Ray actor that hosts a role.

    Args:
        label: 'rollout-0'.
        actor: handle of the actor.
        timeout_s: for calls that are waited for here.
        log_file: where its output is, for error messages.
    """

    def __init__(self, label: str, actor: Any, timeout_s: float, log_file: str) -> None:
        self.label, self.actor, self.pid = label, actor, 0
        self._timeout_s, self._log_file = timeout_s, log_file

    def ask(self, method: str, *arguments: Any, timeout_s: float | None = None) -> Any:
        """Call a method of the host and wait for its answer.

        Raises:
            WorkerLostError: the process is gone.
            ClusterError: no answer in time.
            OmniPortableError: what the host raised.
        """
        return value(self.fetch(method, *arguments, timeout_s=timeout_s), self.label)

    def fetch(self, method: str, *arguments: Any, timeout_s: float | None = None) -> Any:
        """As :meth:`ask`, for methods that answer with something plain."""
        limit = timeout_s or self._timeout_s
        try:
            return ray.get(getattr(self.actor, method).remote(*arguments), timeout=limit)
        except GetTimeoutError as error:
            raise ClusterError(
                f"'{self.label}' did not answer '{method}' within {limit:g} seconds",
                remedy=f"look into {self._log_file}; launcher.options.answer_timeout_s allows more time",
            ) from error
        except RayError as error:
            raise self.explained(error) from error

    async def asked(self, method: str, *arguments: Any) -> bytes:
        """As :meth:`ask`, without blocking the event loop and without a limit of time; the packed answer."""
        try:
            blob: bytes = await getattr(self.actor, method).remote(*arguments)
        except RayError as error:
            raise self.explained(error) from error
        return blob

    async def asked_apart(self, method: str, *arguments: Any, extra: int) -> tuple[Any, ...]:
        """As :meth:`asked`, for a method that answers with so many further objects: the packed answer, and references
        to the others, which stay where they are."""
        call = getattr(self.actor, method)
        try:
            if not extra:
                return tuple(await call.remote(*arguments))
            answer, *others = call.options(num_returns=1 + extra).remote(*arguments)
            return await answer, *others
        except RayError as error:
            raise self.explained(error) from error

    def bring(self, reference: Any) -> Any:
        """What a reference of :meth:`asked_apart` stands for.

        Raises:
            WorkerLostError: it is gone with its machine.
        """
        try:
            return ray.get(reference, timeout=self._timeout_s)
        except GetTimeoutError as error:
            raise ClusterError(
                f"media that '{self.label}' drew did not come within {self._timeout_s:g} seconds",
                remedy="launcher.options.answer_timeout_s allows more time",
            ) from error
        except RayError as error:
            raise self.explained(error) from error

    def explained(self, error: RayError) -> OmniPortableError:
        """An error of Ray in our words."""
        if isinstance(error, (RayActorError, ObjectLostError, NodeDiedError)):
            return WorkerLostError(
                f"the process of '{self.label}' is gone: {_first_line(error)}",
                remedy=f"its output is in {self._log_file}",
            )
        return ClusterError(f"'{self.label}' cannot be called: {_first_line(error)}", remedy=f"see {self._log_file}")

    def end(self) -> None:
        """Ask the role to close itself if its process still answers, then end the process."""
        try:
            self.ask("close", timeout_s=10.0)
        except (OmniPortableError, RuntimeError) as error:
            log.info("'%s' did not close itself: %s", self.label, error)
        ray.kill(self.actor)


def _first_line(error: RayError) -> str:
    text = " ".join(str(error).split())
    return text if len(text) <= 300 else text[:297] + "..."
