"""The trainer's side of one worker process: calls, and Ray's errors in our words."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import ray
from ray.exceptions import NodeDiedError, ObjectLostError, RayActorError, RayError

from omni_backends.launch.ray.disk import of_ray
from omni_backends.launch.ray.head import Head
from omni_backends.launch.ray.wire import value
from omni_portable.contracts.errors import ClusterError, OmniPortableError, WorkerLostError

log = logging.getLogger(__name__)

AGAIN = "continue the run from its last checkpoint (trainer.resume=auto), which makes them again"
"""Remedy where objects of samples are gone."""
LIMIT = 600
"""Characters of Ray's words about a failure: the reason comes last."""
SLICE_S = 1.0
"""Between two looks at the cluster while an answer is waited for."""


class SilentError(ClusterError):
    """A worker did not answer in time; its process may live."""


class Worker:
    """A Ray actor that hosts a role.

    Args:
        label: 'rollout-0'.
        actor: handle of the actor.
        timeout_s: for calls that are waited for here.
        log_file: where its output is, for error messages.
        head: of the cluster; None where nobody looks after it.
    """

    def __init__(
        self,
        label: str,
        actor: Any,
        timeout_s: float,
        log_file: str,
        head: Head | None = None,
    ) -> None:
        self.label, self.actor, self.pid = label, actor, 0
        self._timeout_s, self._log_file, self._head = timeout_s, log_file, head

    @property
    def patience_s(self) -> float:
        """Seconds that a call may take which is waited for here."""
        return self._timeout_s

    def ask(self, method: str, *arguments: Any, timeout_s: float | None = None) -> Any:
        """Call a method of the host and wait for its answer.

        Raises:
            WorkerLostError: the process is gone.
            SilentError: no answer in time.
            OmniPortableError: what the host raised.
        """
        return value(self.fetch(method, *arguments, timeout_s=timeout_s), self.label)

    def fetch(self, method: str, *arguments: Any, timeout_s: float | None = None) -> Any:
        """As :meth:`ask`, for methods that answer with something plain."""
        limit = timeout_s or self._timeout_s
        self.require_cluster()
        try:
            late = f"'{self.label}' did not answer '{method}' within {limit:g} seconds"
            return self._wait(getattr(self.actor, method).remote(*arguments), limit, late)
        except RayError as error:
            raise self.explained(error) from error

    def _wait(self, reference: Any, limit_s: float, late: str) -> Any:
        deadline = time.monotonic() + limit_s
        while time.monotonic() <= deadline:
            self.require_cluster()
            if ray.wait([reference], timeout=min(SLICE_S, max(0.0, deadline - time.monotonic())))[0]:
                return ray.get(reference)
        remedy = f"look into {self._log_file}; launcher.options.answer_timeout_s allows more time"
        raise of_ray(SilentError, late, remedy)

    async def asked(self, method: str, *arguments: Any) -> bytes:
        """As :meth:`ask`, without blocking the event loop and without a limit of time; the packed answer."""
        self.require_cluster()
        try:
            blob: bytes = await getattr(self.actor, method).remote(*arguments)
        except RayError as error:
            raise self.explained(error) from error
        return blob

    async def asked_apart(self, method: str, *arguments: Any, extra: int) -> tuple[Any, ...]:
        """As :meth:`asked`, for a method that answers with so many further objects: the packed answer, and references
        to the others, which stay where they are."""
        self.require_cluster()
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
            ClusterError: it is gone with its machine, or does not come in time.
        """
        self.require_cluster()
        what = f"media or tensors that '{self.label}' made"
        try:
            late = f"{what} did not come within {self._timeout_s:g} seconds"
            return self._wait(reference, self._timeout_s, late)
        except ObjectLostError as error:
            raise ClusterError(
                f"{what} are gone with their machine: {_first_line(error)}",
                remedy=AGAIN,
            ) from error
        except RayError as error:
            raise self.explained(error) from error

    def require_cluster(self) -> None:
        """
        Raises:
            ClusterError: it is gone, or this process has left it (Ray would start another one then, open to all); no
                call may be made any more.
        """
        if not ray.is_initialized():
            raise ClusterError(f"'{self.label}' cannot be called: this process has left the Ray cluster")
        if self._head is not None and self._head.gone is not None:
            raise self._head.gone

    def explained(self, error: RayError) -> OmniPortableError:
        """An error of Ray in our words."""
        if self._head is not None and (gone := self._head.look()) is not None:
            return gone
        if isinstance(error, (RayActorError, ObjectLostError, NodeDiedError)):
            lost = f"the process of '{self.label}' is gone: {_first_line(error)}"
            return of_ray(WorkerLostError, lost, f"its output is in {self._log_file}")
        return of_ray(ClusterError, f"'{self.label}' cannot be called: {_first_line(error)}", f"see {self._log_file}")

    def kill(self) -> None:
        """End the process at once."""
        ray.kill(self.actor)

    def end(self) -> None:
        """Ask the role to close itself if it was ready and its process still answers, then end the process."""
        try:
            if self.pid:
                self.ask("close", timeout_s=10.0)
        except (OmniPortableError, RuntimeError) as error:
            log.info("'%s' did not close itself: %s", self.label, error)
        self.kill()


@contextmanager
def objects_named(kind: type[OmniPortableError], problem: str, remedy: str) -> Iterator[None]:
    """Around a call that is sent objects of the store: where these are gone with their machine, that is an error of its
    own. No other process mends it, as it does the loss of the one that was called.

    Args:
        kind / problem / remedy: of the error; Ray's words follow the problem.
    """
    try:
        yield
    except WorkerLostError as error:
        if not isinstance(error.__cause__, ObjectLostError):
            raise
        raise kind(f"{problem}: {_first_line(error.__cause__)}", remedy=remedy) from error


def _first_line(error: RayError) -> str:
    text = " ".join(str(error).split())
    return text if len(text) <= LIMIT else text[: LIMIT - 3] + "..."
