"""A tiny language model that draws long responses: they are still being drawn when an update ends."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from omni_portable.config.recipes import find_recipe
from tests.e2e.conftest import Cli
from tests.support.token_models import folder

LONG = (
    "data.train_batch_size=4",
    "rollout.n=4",
    "actor.mini_batch_size=16",
    "rollout.max_num_seqs=4",
    "rollout.max_new_tokens=48",
    "rollout.temperature=3.0",
    "trainer.validate_before=false",
    "consistency.batch_shapes=[]",
    "consistency.max_logprob_gap=1e-4",
    "trainer.total_steps=4",
    "trainer.progress=off",
    "trainer.loggers=[jsonl]",
    "device.threads=1",
)
"""Responses of many tokens from a model of random weights: an update ends before they do."""


def train_letters(cli: Cli, run_dir: Path, *overrides: str) -> list[dict[str, Any]]:
    """The rows of metrics.jsonl of a run of four steps of four prompts, four responses each."""
    recipe = find_recipe("qwen3/grpo_letters_tiny")
    outcome = cli("train", recipe, f"trainer.run_dir={run_dir}", f"model.path={folder('qwen3')}", *LONG, *overrides)
    assert outcome.code == 0, outcome.err
    return [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
