"""A run with two teachers, of which each prompt names one: how it is configured, and what two such runs must share."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from omni_portable.models.sd3.tiny import build_tiny_sd3
from tests.e2e.conftest import WORDS
from tests.e2e.rundirs import metrics

OWN = "teacher/"
"""Prefix of metrics that only a pool has."""


def distilling(workshop: Path) -> tuple[str, ...]:
    """Overrides of the workshop's recipe: each step's two prompts have different teachers, or the same."""
    teacher, prompts = workshop / "teacher", workshop / "routed.jsonl"
    if not teacher.exists():
        build_tiny_sd3(teacher, seed=1)
        rows = [{"prompt": f"the word {word}", "who": "ab"[at % 2]} for at, word in enumerate(WORDS[:6])]
        prompts.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return (
        f"model.teachers={{a: {{path: '{teacher}'}}, b: {{path: '{workshop / 'sd3'}'}}}}",
        "model.teacher_field=who",
        "algorithm={name: diffusion_opd, step_kind: cps, noise_level: 0.5, window_mode: fixed, "
        "stochastic_steps: [1, 2]}",
        f"data.train={prompts}",
        "data.validation=''",
        "rollout.max_num_seqs=2",
    )


def assert_alike(left: Path, right: Path) -> None:
    """Every metric of every step agrees to what fp32 rounding may change."""
    ours, theirs = metrics(left), metrics(right)
    assert ours.keys() == theirs.keys()
    for step, row in ours.items():
        other = {name: value for name, value in theirs[step].items() if not name.startswith(OWN)}
        mine = {name: value for name, value in row.items() if not name.startswith(OWN)}
        assert mine == pytest.approx(other, abs=1e-5, rel=1e-4)
