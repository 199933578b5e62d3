"""Distances of a student's next-token distributions from a teacher's."""

from __future__ import annotations

import torch


def reverse_kl(logits: torch.Tensor, teacher_logits: torch.Tensor) -> torch.Tensor:
    """(...) KL(student || teacher) of the distributions given by logits (..., V); gradient to the student's only."""
    student = torch.log_softmax(logits, dim=-1)
    teacher = torch.log_softmax(teacher_logits.detach(), dim=-1)
    return (student.exp() * (student - teacher)).sum(dim=-1)
