"""Every tiny recipe of the package trains two steps; a recipe that is to learn draws fewer samples than it would."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from omni_portable.config.loader import list_recipes, load_config
from omni_portable.config.schema import RunConfig
from tests.docs.glossary import names_in, undescribed
from tests.e2e.conftest import Cli
from tests.e2e.rundirs import metrics

TINY = [name for name in list_recipes() if name.endswith("_tiny")]

STEPS = 2
FEW = 4
"""Samples per prompt, at most; prompts per rollout and of a validation are half of it."""


def overrides(config: RunConfig) -> list[str]:
    """What makes two steps of a recipe a matter of seconds; the algorithm, the model and the rewards stay."""
    given = bool(config.data.targets)
    samples = config.rollout.n if given else min(config.rollout.n, FEW)
    prompts = min(config.data.train_batch_size, FEW // 2)
    found = {
        "rollout.n": samples,
        "data.train_batch_size": prompts,
        "data.max_validation_prompts": FEW // 2,
        "rollout.max_num_seqs": min(config.rollout.max_num_seqs, prompts * samples),
        "actor.mini_batch_size": 0,
        "actor.micro_batch_size": min(config.actor.micro_batch_size, prompts * samples),
        "consistency.batch_shapes": [],
        "trainer.total_steps": STEPS,
        "trainer.validate_interval": 0,
        "trainer.validate_before": "false",
        "trainer.validation_samples": 1,
        "trainer.save_interval": 0,
        "trainer.progress": "plain",
        "trainer.loggers": "[jsonl]",
        "device.threads": 1,
    }
    return [f"{key}={value}" for key, value in found.items()]


@pytest.mark.parametrize("recipe", TINY)
def test_a_packaged_recipe_trains(cli: Cli, tmp_path: Path, recipe: str) -> None:
    config = load_config(recipe)
    outcome = cli("train", recipe, *overrides(config), f"trainer.run_dir={tmp_path / 'run'}")
    assert outcome.code == 0, outcome.err
    assert undescribed(names_in(tmp_path / "run")) == [], "metrics that docs/user-guide.md does not describe"
    rows = metrics(tmp_path / "run")
    assert max(rows) == STEPS
    trained = [row for row in rows.values() if "actor/grad_norm" in row]
    assert trained, "no step had a signal to train on"
    for row in trained:
        assert 0.0 < row["actor/grad_norm"] < math.inf or row["reward/std"] == 0.0
        if config.consistency.max_logprob_gap == 0 and "rollout_corr/logprob_abs_diff/max" in row:
            assert row["rollout_corr/logprob_abs_diff/max"] == 0.0
            assert row.get("actor/ratio_max_dev", 0.0) == 0.0  # distillation has no ratios
    assert any(row["actor/grad_norm"] > 0.0 for row in trained)
    if config.data.validation:
        assert rows[STEPS]["validation/count"] > 0
    assert any((tmp_path / "run" / "export").iterdir())
