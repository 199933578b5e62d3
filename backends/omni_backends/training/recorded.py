"""Teachers that live elsewhere: the train engine reads from its trajectories what they said."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from omni_backends.training.micro import Common, MicroBatch
from omni_portable.contracts.errors import ConsistencyError
from omni_portable.contracts.tokens import TokenRow, TokenScores


class RecordedTeachers:
    """Stands where `teachers.Teachers` would, and holds no weights."""

    def forward(self, micro: MicroBatch, step: int) -> Any:
        """The micro-batch's own forward over the recorded outputs: means and log-probs come from the same code.

        Raises:
            ConsistencyError: a sample without an output, or one that does not fit it.
        """
        with torch.no_grad():
            return micro.forward(Recording(micro.common, step), step)

    def modules(self) -> list[torch.nn.Module]:
        """None: nothing of the teachers is here."""
        return []


class Recording:
    """What an adapter would compute for row `step` of B samples, as it was computed before.

    Args:
        common: of the micro-batch of these samples.
    """

    def __init__(self, common: Common, step: int) -> None:
        self._ids, self._outputs, self._step = common.request_ids, common.teacher, step
        self._device = common.advantages.device

    def velocity(self, latents: torch.Tensor, *_: object) -> torch.Tensor:
        """(B, ...) fp32, of the shape and on the device of the latents."""
        rows = [rows[self._step] for rows in self._named("velocity")]
        for request_id, row in zip(self._ids, rows, strict=True):
            _check(request_id, row, latents.shape[1:])
        return torch.stack(rows).to(latents.device, torch.float32)

    def score(
        self, rows: Sequence[TokenRow], temperature: float, *, entropy: bool = False, logits: bool = False
    ) -> TokenScores:
        """(B, L) log-probs and, where wanted, (B, L, V) logits on the device of the micro-batch."""
        log_probs = self._named("log_prob")
        for request_id, log_prob, row in zip(self._ids, log_probs, rows, strict=True):
            _check(request_id, log_prob, row.response_ids.shape)
        lengths = torch.tensor([log_prob.shape[0] for log_prob in log_probs])
        pad = torch.nn.utils.rnn.pad_sequence
        return TokenScores(
            log_prob=pad(log_probs, batch_first=True).to(self._device),
            mask=(torch.arange(int(lengths.max()))[None] < lengths[:, None]).to(self._device),
            logits=pad(self._named("logits"), batch_first=True).to(self._device) if logits else None,
        )

    def _named(self, name: str) -> list[torch.Tensor]:
        found: list[torch.Tensor] = []
        for request_id, output in zip(self._ids, self._outputs, strict=True):
            tensor = None if output is None else getattr(output, name)
            if tensor is None:
                raise ConsistencyError(
                    f"the sample '{request_id}' came to the train engine without its teacher's {name}",
                    remedy="hand it to the teachers before it is trained on, or set teacher.placement=engine",
                )
            found.append(tensor)
        return found


def _check(request_id: str, tensor: torch.Tensor, shape: Sequence[int]) -> None:
    if tuple(tensor.shape) != tuple(shape):
        raise ConsistencyError(
            f"the teacher's output for the sample '{request_id}' has shape {tuple(tensor.shape)}, expected "
            f"{tuple(shape)}"
        )
