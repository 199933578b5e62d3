"""Tiny models with a past: one that answers in the right form and knows nothing, and one that knows.

The first is the start of the tiny recipes. It is trained to give one of the possible answers at random whatever it is
shown, so that what a run then gains it has gained from its rewards. The second is a teacher.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import torch

from omni_portable.contracts.tokens import TokenInputs, TokenRow
from omni_portable.models.autoregressive.adapter import LanguageAdapter
from omni_portable.models.autoregressive.policy import LanguagePolicy
from omni_portable.models.autoregressive.tiny_media import QUESTIONS

FIRST_SEED = 1_000_000
"""Of the media that a warm start is shown; the packaged sets count from 0."""

Question = tuple[TokenInputs, Sequence[str]]
"""An encoded prompt, and the answers that are trained on."""


def media_questions(
    adapter: LanguageAdapter, kinds: Sequence[str], *, right: bool = False, count: int = 24
) -> list[Question]:
    """`count` questions about media of each answer, for the named :data:`QUESTIONS`; with the right answer alone, or
    with all that have the right form."""
    found: list[Question] = []
    for question in kinds:
        drawer, answers = QUESTIONS[question]
        for answer in answers:
            for seed in range(FIRST_SEED, FIRST_SEED + count):
                medium = drawer(answer, seed)
                found.append((adapter.build_inputs(question, {medium.name: medium}), (answer,) if right else answers))
    return found


def retrain(adapter: LanguageAdapter, questions: Sequence[Question], path: Path) -> None:
    """Train the model of a folder and write it there again; global random state is left alone."""
    with torch.random.fork_rng(devices=[]), torch.enable_grad():
        train_answers(adapter, questions)
    policy = adapter.transformer
    assert isinstance(policy, LanguagePolicy)
    policy.save_pretrained(path)


def train_answers(
    adapter: LanguageAdapter, questions: Sequence[Question], *, steps: int = 150, batch: int = 16, lr: float = 3e-3
) -> None:
    """Train the loaded policy (all weights) in place.

    Args:
        questions: drawn from uniformly; each gets a random one of its answers.
        steps / batch / lr: of AdamW on the mean negative log-likelihood of tokens.
    """
    draw, policy = random.Random(0), adapter.transformer
    policy.requires_grad_(True)
    optimizer = torch.optim.AdamW(policy.parameters(), lr=lr)
    for _ in range(steps):
        chosen = [draw.choice(questions) for _ in range(batch)]
        rows = [TokenRow(prompt, adapter.response_ids(draw.choice(list(answers)))) for prompt, answers in chosen]
        scores = adapter.score(rows, 1.0)
        loss = -(scores.log_prob * scores.mask).sum() / scores.mask.sum()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
        optimizer.step()
