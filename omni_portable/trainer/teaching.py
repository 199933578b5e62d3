"""Teachers beside rollout: trajectories get their teacher's outputs before they are stored for training."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from omni_portable.config.schema import ModelConfig, TeacherPoolConfig
from omni_portable.contracts.errors import (
    ClusterError,
    ConfigError,
    ConsistencyError,
    DataError,
    OmniPortableError,
    TeacherError,
    WorkerLostError,
)
from omni_portable.contracts.teacher import Teacher, TeacherOutput, Teaching
from omni_portable.contracts.tokens import AnyTrajectory
from omni_portable.models.teacher_routing import teacher_of
from omni_portable.rollout.distant import DistantTensor
from omni_portable.trainer.rollout_stage import gathered

log = logging.getLogger(__name__)

HOPELESS = (ClusterError, ConfigError, ConsistencyError, DataError, WorkerLostError)
"""Errors that neither a further attempt nor a policy for failures mends."""


class InThread:
    """A teacher of this process, called in threads, one at a time."""

    name = "teacher"

    def __init__(self, teacher: Teacher) -> None:
        self._teacher, self._lock = teacher, threading.Lock()

    async def teach_async(self, trajectories: Sequence[AnyTrajectory]) -> list[TeacherOutput]:
        """As :meth:`Teacher.teach`. A thread cannot be ended: one that hangs stays until the process ends, holds up
        later calls, and is waited for by nobody."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[list[TeacherOutput]] = loop.create_future()

        def settle(outputs: list[TeacherOutput], error: BaseException | None) -> None:
            if answer.done():
                return
            if error is None:
                answer.set_result(outputs)
            else:
                answer.set_exception(error)

        def work() -> None:
            outputs, failed = list[TeacherOutput](), None
            with self._lock:
                if answer.done():
                    return
                try:
                    outputs = self._teacher.teach(trajectories)
                except Exception as error:  # noqa: BLE001 - whatever it is, whoever waits gets it
                    failed = error
            if not loop.is_closed():
                loop.call_soon_threadsafe(settle, outputs, failed)

        threading.Thread(target=work, name="teacher", daemon=True).start()
        return await answer


class RevivedTeacher:
    """A teacher in another process that is started again when it is lost or does not answer; the samples are then
    handed to its successor, once.

    Args:
        label: of the worker, for messages.
        worker: the first one.
        restart: makes another; called in a thread.
        restarts: that there are at most.
    """

    def __init__(self, label: str, worker: Teaching, restart: Callable[[], Teaching], restarts: int) -> None:
        self._label, self._worker, self._restart, self._left = label, worker, restart, restarts

    async def teach_async(self, trajectories: Sequence[AnyTrajectory]) -> list[TeacherOutput]:
        """
        Raises:
            WorkerLostError: the worker was lost twice over these samples, or more often than it may be started again.
        """
        try:
            return await self._worker.teach_async(trajectories)
        except WorkerLostError as error:
            await self._revive(error)
        try:
            return await self._worker.teach_async(trajectories)
        except WorkerLostError as error:
            first = trajectories[0].request.request_id
            raise WorkerLostError(
                f"the teacher worker '{self._label}' was lost twice over the same {len(trajectories)} samples (the "
                f"first: '{first}'): {error.problem}",
                remedy="look into logs/ of the run directory for what ends it; the run can be continued from its last "
                "checkpoint",
            ) from error

    async def renew(self) -> None:
        """End the worker, which does not answer, and start another.

        Raises:
            WorkerLostError: it was started again as often as it may be.
        """
        await self._revive(WorkerLostError(f"'{self._label}' does not answer and is ended"))

    async def _revive(self, error: WorkerLostError) -> None:
        if self._left == 0:
            raise WorkerLostError(
                f"the teacher worker '{self._label}' was lost once more than launcher.restarts allows: {error.problem}",
                remedy="look into logs/ of the run directory for what ends it; the run can be continued from its last "
                "checkpoint",
            ) from error
        self._left -= 1
        log.warning("%s (it is started again, and its samples are handed to it once more)", error.problem)
        self._worker = await asyncio.to_thread(self._restart)


@dataclass(frozen=True)
class Taught:
    """Trajectories with their teachers' outputs, in order.

    Args:
        errors: request id -> why its teacher gave no output; only with `teacher.on_error=drop_group`.
    """

    trajectories: Sequence[AnyTrajectory]
    errors: Mapping[str, str] = field(default_factory=dict)


class TeacherStage:
    """Trajectories -> the same with what their teachers said.

    Args:
        model: says which prompt has which teacher.
        policy: deadline, attempts, and what a failure does.
        workers: name of a teacher -> its workers, each of which is asked about one set of samples at a time.
    """

    def __init__(
        self, model: ModelConfig, policy: TeacherPoolConfig, workers: Mapping[str, Sequence[Teaching]]
    ) -> None:
        self._model, self._policy = model, policy
        self._free: dict[str, asyncio.Queue[Teaching]] = {}
        for name, several in workers.items():
            self._free[name] = asyncio.Queue()
            for worker in several:
                self._free[name].put_nowait(worker)

    async def run(self, trajectories: Sequence[AnyTrajectory]) -> Taught:
        """
        Raises:
            DataError: a prompt that names no teacher.
            TeacherError: a teacher failed in all attempts, and the policy is 'fail'.
            WorkerLostError: a teacher's process was lost for good.
        """
        members: dict[str, list[int]] = {}
        for index, trajectory in enumerate(trajectories):
            request = trajectory.request
            name = teacher_of(self._model, f"the prompt of sample '{request.request_id}'", request.metadata)
            members.setdefault(name, []).append(index)
        asked = [self._ask(name, [trajectories[index] for index in rows]) for name, rows in members.items()]
        taught, errors = list(trajectories), dict[str, str]()
        for rows, answer in zip(members.values(), await gathered(asked), strict=True):
            if isinstance(answer, str):
                errors |= {trajectories[index].request.request_id: answer for index in rows}
                continue
            for index, output in zip(rows, answer, strict=True):
                taught[index] = replace(trajectories[index], teacher=output)
        return Taught(taught, errors)

    async def _ask(self, name: str, trajectories: Sequence[AnyTrajectory]) -> list[TeacherOutput] | str:
        """Outputs, or why there are none."""
        worker = await self._free[name].get()
        try:
            return await self._attempts(name, worker, [bare(trajectory) for trajectory in trajectories])
        finally:
            self._free[name].put_nowait(worker)

    async def _attempts(
        self, name: str, worker: Teaching, trajectories: Sequence[AnyTrajectory]
    ) -> list[TeacherOutput] | str:
        policy, why, cause = self._policy, "", Exception()
        for _ in range(policy.retries + 1):
            try:
                async with asyncio.timeout(policy.timeout_s):
                    outputs = await worker.teach_async(trajectories)
                check_outputs(name, trajectories, outputs)
                return outputs
            except HOPELESS:
                raise
            except TimeoutError as error:
                why, cause = f"no answer within teacher.timeout_s={policy.timeout_s:g} seconds", error
                if isinstance(worker, RevivedTeacher):
                    await worker.renew()
            except (OmniPortableError, RuntimeError) as error:
                why, cause = f"{type(error).__name__}: {getattr(error, 'problem', error)}", error
            log.warning("the teacher '%s' failed on %d samples: %s", name, len(trajectories), why)
        why = f"the teacher '{name}' failed: {why} (after {policy.retries + 1} attempts)"
        if policy.on_error == "drop_group":
            return why
        raise TeacherError(
            f"{why}; {len(trajectories)} samples, the first '{trajectories[0].request.request_id}'",
            remedy="see the cause; teacher.retries allows further attempts, teacher.timeout_s more time, and "
            "teacher.on_error=drop_group leaves prompts out whose samples have no teacher",
        ) from cause


def bare(trajectory: AnyTrajectory) -> AnyTrajectory:
    """The trajectory without media, which neither teachers nor training read."""
    request: Any = replace(trajectory.request, media={}, target={})
    return replace(trajectory, request=request, artifacts={})


def check_outputs(name: str, trajectories: Sequence[AnyTrajectory], outputs: Sequence[TeacherOutput]) -> None:
    """Distant tensors were looked at where they were made (see `contracts.teacher.Teaching`).

    Raises:
        TeacherError: not one output per trajectory, one that is empty, or a value that is not finite.
    """
    if len(outputs) != len(trajectories):
        raise TeacherError(f"the teacher '{name}' gave {len(outputs)} outputs for {len(trajectories)} samples")
    for trajectory, output in zip(trajectories, outputs, strict=True):
        tensors = output.tensors()
        here = {key: tensor for key, tensor in tensors.items() if not isinstance(tensor, DistantTensor)}
        bad = [key for key, tensor in here.items() if not bool(tensor.isfinite().all())]
        if bad or not tensors:
            what = f"is not finite in {', '.join(bad)}" if bad else "is empty"
            raise TeacherError(
                f"the output of the teacher '{name}' for the sample '{trajectory.request.request_id}' {what}"
            )
