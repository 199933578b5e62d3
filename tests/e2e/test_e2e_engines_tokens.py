"""Language and omni recipes with vLLM in place of the native engine: the same run, step by step."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from omni_portable.config.recipes import find_recipe
from tests.e2e.rundirs import metrics
from tests.e2e.settings import BARE, VLLM
from tests.support.engines import require_installed

require_installed("vllm")

STEPS = 3
COMMON = (
    *BARE,
    f"trainer.total_steps={STEPS}",
    "data.train_batch_size=4",
    "rollout.n=4",
    "rollout.max_num_seqs=16",
    "actor.mini_batch_size=0",
    "consistency.max_logprob_gap=1e-5",
)
EXACT = ("reward/mean", "reward/std", "replay/sampled_groups")
"""Equal: both engines draw the same tokens."""
CLOSE = {"actor/loss": 1e-5, "actor/grad_norm": 1e-4, "actor/ratio_mean": 1e-5}
"""Largest difference, absolute for the loss and the ratio, relative for the gradient: a hundred times what the engines'
log-probs differ by."""


@pytest.mark.parametrize(("family", "name"), [("qwen3", "gspo_gsm8k"), ("qwen3_omni", "gspo_colours")])
def test_vllm_trains_as_the_native_engine_does(tmp_path: Path, family: str, name: str) -> None:
    def train(where: str, *more: str) -> dict[int, dict[str, float]]:
        """In a process of its own: vLLM logs to the streams that it found when it was imported."""
        recipe, run = str(find_recipe(f"{family}/{name}_tiny")), f"trainer.run_dir={tmp_path / where}"
        command = [sys.executable, "-m", "omni_portable.cli", "train", recipe, run, *COMMON, *more]
        ended = subprocess.run(command, capture_output=True, text=True)
        assert ended.returncode == 0, ended.stderr
        assert "Traceback" not in ended.stdout + ended.stderr
        return metrics(tmp_path / where)

    native, vllm = train("native"), train("vllm", *VLLM)
    assert native.keys() == vllm.keys()
    trained = [step for step in native if step]
    assert len(trained) == STEPS
    assert any(native[step]["actor/grad_norm"] > 0 for step in trained)
    for step in trained:
        ours, theirs = vllm[step], native[step]
        assert {key: ours[key] for key in EXACT} == {key: theirs[key] for key in EXACT}
        for key, tolerance in CLOSE.items():
            scale = max(1.0, abs(theirs[key])) if key == "actor/grad_norm" else 1.0
            assert ours[key] == pytest.approx(theirs[key], rel=0, abs=tolerance * scale), (step, key)
        assert ours["rollout_corr/logprob_abs_diff/max"] <= 1e-5
        assert ours["training/rollout_actor_probs_pearson_corr"] >= 0.9999
