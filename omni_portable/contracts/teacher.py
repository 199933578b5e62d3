"""The teacher seam: what a teacher that lives outside the train engine says of a trajectory, and who asks it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    import torch

    from omni_portable.contracts.algorithm import Algorithm
    from omni_portable.contracts.tokens import AnyTrajectory, TokenAlgorithm

POOL = "teacher_pool"
"""Capability of a train engine: ``module:attribute`` of what answers for its teachers outside it, constructed as
``Teacher(setup, name, algorithm)`` with the methods of :class:`Teacher`."""


@dataclass(frozen=True, eq=False)
class TeacherOutput:
    """What one teacher said of one trajectory; tensors live on the host.

    Args:
        teacher: its name in `model.teachers`.
        velocity: (W, ...) fp32 at the stored steps of a denoised sample, after guidance; None for responses.
        log_prob: (L,) fp32 of the tokens of a response; None for denoised samples.
        logits: (L, V) fp32, divided by the temperature, where the algorithm compares whole distributions.
    """

    teacher: str
    velocity: torch.Tensor | None = None
    log_prob: torch.Tensor | None = None
    logits: torch.Tensor | None = None

    def __repr__(self) -> str:
        """Without tensors: event loops format the results of their tasks."""
        return f"TeacherOutput({self.teacher!r})"

    def tensors(self) -> dict[str, torch.Tensor]:
        """What is there, by name."""
        named = {"velocity": self.velocity, "log_prob": self.log_prob, "logits": self.logits}
        return {name: tensor for name, tensor in named.items() if tensor is not None}


@runtime_checkable
class Teacher(Protocol):
    """One frozen teacher."""

    def teach(self, trajectories: Sequence[AnyTrajectory]) -> list[TeacherOutput]:
        """One output for each trajectory, in order; called from one thread at a time.

        Raises:
            CapabilityError: the output of one trajectory would be larger than `teacher.max_mib`.
            ConsistencyError: trajectories that this teacher cannot read.
        """
        ...


class Teaching(Protocol):
    """A teacher, here or in another process. Teaching leaves nothing behind and may be asked for again."""

    async def teach_async(self, trajectories: Sequence[AnyTrajectory]) -> list[TeacherOutput]:
        """As :meth:`Teacher.teach`, without blocking the event loop. A tensor whose elements stay in another process
        is finite."""
        ...


class TeacherFactory(Protocol):
    """What the capability :data:`POOL` names."""

    def __call__(self, setup: object, name: str, algorithm: Algorithm | TokenAlgorithm) -> Teacher: ...
