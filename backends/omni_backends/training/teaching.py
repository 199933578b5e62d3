"""A teacher outside the train engine: it scores trajectories as they come, in the micro-batches that training uses."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import cast

import torch

from omni_backends.training.micro import MicroBatch, Scored
from omni_backends.training.replay import transition_batches
from omni_backends.training.teachers import load_teacher
from omni_backends.training.tokens import token_batches
from omni_backends.training.worker import micro_batch_size
from omni_portable.config.kinds import trained_kind
from omni_portable.contracts.algorithm import TrainBatch
from omni_portable.contracts.errors import CapabilityError
from omni_portable.contracts.teacher import TeacherOutput
from omni_portable.contracts.tokens import AnyAlgorithm, AnyTrajectory, TokenAlgorithm, TokenScores
from omni_portable.models.setup import EngineSetup

MIB = 1 << 20


class PoolTeacher:
    """One frozen teacher (see `contracts.teacher.Teacher`).

    Args:
        setup: `config.model.teachers` names its weights; device and dtype are those of the setup.
        name: which of them.
        algorithm: says whether whole distributions are wanted.

    Raises:
        ModelError: a folder that is missing or of another family.
    """

    def __init__(self, setup: EngineSetup, name: str, algorithm: AnyAlgorithm) -> None:
        self._name, self._algorithm = name, algorithm
        self._size = micro_batch_size(setup)
        self._device = setup.load.torch_device
        self._limit = setup.config.teacher.max_mib * MIB
        self._tokens = trained_kind(setup.config) == "autoregressive"
        self._adapter = load_teacher(setup, name)

    def teach(self, trajectories: Sequence[AnyTrajectory]) -> list[TeacherOutput]:
        """One output for each trajectory, in order; no gradient.

        Raises:
            CapabilityError: the output of one trajectory would be larger than `teacher.max_mib`, or a denoised sample
                has no stored steps.
            ConsistencyError: trajectories of one micro-batch that cannot share a forward.
        """
        outputs: list[TeacherOutput] = []
        with torch.no_grad():
            for micro in self._micro_batches(TrainBatch(list(trajectories), torch.zeros(len(trajectories)))):
                count = len(micro.common.request_ids)
                self._check_size(trajectories[len(outputs) : len(outputs) + count])
                outputs += self._of_tokens(micro) if self._tokens else self._of_steps(micro)
        return outputs

    def _micro_batches(self, batch: TrainBatch) -> Iterator[MicroBatch]:
        if self._tokens:
            return token_batches(batch, cast(TokenAlgorithm, self._algorithm), self._size, self._device)
        return transition_batches(self._adapter, batch, self._size, self._device)

    def _of_steps(self, micro: MicroBatch) -> list[TeacherOutput]:
        steps = [cast(Scored, micro.forward(self._adapter, step)).velocity.cpu() for step in range(micro.num_steps)]
        rows = torch.stack(steps, dim=1)
        return [TeacherOutput(self._name, velocity=row.clone()) for row in rows]

    def _of_tokens(self, micro: MicroBatch) -> list[TeacherOutput]:
        scored: TokenScores = micro.forward(self._adapter, 0)
        outputs = []
        for row, length in enumerate(scored.mask.sum(dim=1).tolist()):
            logits = None if scored.logits is None else scored.logits[row, :length]
            if logits is not None:
                self._check_bytes(logits.numel() * logits.element_size(), micro.common.request_ids[row])
            outputs.append(
                TeacherOutput(
                    self._name,
                    log_prob=scored.log_prob[row, :length].cpu().clone(),
                    logits=None if logits is None else logits.cpu().clone(),
                )
            )
        return outputs

    def _check_size(self, trajectories: Sequence[AnyTrajectory]) -> None:
        """Before the forward, where the size is known by then: a velocity is as large as the latents."""
        for trajectory in trajectories:
            latents = getattr(trajectory, "latents", None)
            if latents is not None:
                self._check_bytes(latents.numel() * 4, trajectory.request.request_id)

    def _check_bytes(self, size: int, request_id: str) -> None:
        if size > self._limit:
            raise CapabilityError(
                f"the teacher '{self._name}' would answer with {size / MIB:.1f} MiB for the sample '{request_id}', "
                f"more than teacher.max_mib={self._limit // MIB}",
                remedy="set teacher.placement=engine, where nothing travels, or a larger teacher.max_mib; whole "
                "distributions (algorithm.objective=full of token_opd) are what takes most",
            )
