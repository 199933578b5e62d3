"""Token models through the command line: every family in seconds, resuming, and learning from pictures and sounds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from omni_portable.config.recipes import find_recipe
from omni_portable.contracts import registry
from tests.e2e.conftest import Cli
from tests.e2e.rundirs import CLOCKS
from tests.support.token_models import folder

SMALL = ("trainer.total_steps=2", "trainer.progress=plain", "device.threads=1", "trainer.loggers=[jsonl]")


def metrics(run_dir: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]


def recipe(family: str, name: str) -> Path:
    return find_recipe(f"{family}/{name}_tiny")


@pytest.mark.parametrize(
    ("family", "name", "model"),
    [
        ("qwen3", "grpo_letters", "qwen3"),
        ("qwen_vl", "grpo_colours", "qwen_vl"),
        ("qwen_vl", "grpo_colours", "qwen_vl/qwen2_5"),
        ("qwen3", "dr_grpo_letters", "qwen3"),
        ("qwen_vl", "token_dpo_colours", "qwen_vl"),
        ("qwen3_omni", "gspo_colours", "qwen3_omni"),
        ("qwen3_omni", "grpo_tones", "qwen3_omni"),
    ],
)
def test_every_family_trains_a_lora(cli: Cli, tmp_path: Path, family: str, name: str, model: str) -> None:
    """All weights are trained by the recipes as they are (see `test_e2e_recipes`)."""
    overrides = (f"model.path={folder(model)}", "model.lora.rank=4", f"trainer.run_dir={tmp_path / 'run'}")
    outcome = cli("train", recipe(family, name), *overrides, *SMALL)
    assert outcome.code == 0, outcome.err
    rows = metrics(tmp_path / "run")
    if name != "token_dpo_colours":
        assert rows[1]["rollout_corr/logprob_abs_diff/max"] == 0.0
        assert rows[1]["rollout_corr/ratio_exact_one"] == 1.0
    samples = (tmp_path / "run" / "validation" / "step_000002" / "samples.jsonl").read_text().splitlines()
    assert all("response" in json.loads(line)["texts"] for line in samples)
    assert "Before and after" in (tmp_path / "run" / "report.html").read_text()


def test_a_resumed_run_is_the_uninterrupted_one(cli: Cli, tmp_path: Path) -> None:
    def train(where: str, steps: int, *more: str) -> list[dict[str, Any]]:
        overrides = (f"model.path={folder('qwen3_omni')}", f"trainer.run_dir={tmp_path / where}", "model.lora.rank=2")
        fixed = ("trainer.progress=plain", "trainer.loggers=[jsonl]", "trainer.save_interval=1", "algorithm.name=dapo")
        bounds = ("consistency.max_logprob_gap=1e-4", "algorithm.refill_rounds=1")
        outcome = cli(
            "train",
            recipe("qwen3_omni", "grpo_tones"),
            *overrides,
            *fixed,
            *bounds,
            f"trainer.total_steps={steps}",
            *more,
        )
        assert outcome.code == 0, outcome.err
        return metrics(tmp_path / where)

    whole = train("whole", 3)
    train("parts", 1)
    parts = train("parts", 3, "trainer.resume=auto")
    for left, right in zip(whole, parts, strict=True):
        names = [name for name in left if not name.startswith((*CLOCKS, "rollout_corr/batch_shape"))]
        assert {name: left[name] for name in names} == {name: right[name] for name in names}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("algorithm.name=flow_grpo",), "trains diffusion models"),
        (("rollout.temperature=0",), "every response to a prompt would be the same"),
        (("rollout.n=1", "actor.mini_batch_size=0"), "at least 2"),
        (("model.lora.targets=[q_prj]",), "q_prj"),
        (("data.media.image.modality=audio",), "image"),
        (("reward.scorers={s: {kind: jpeg_compressibility}}",), "does not produce"),
    ],
)
def test_what_cannot_work_is_refused(cli: Cli, tmp_path: Path, change: tuple[str, ...], message: str) -> None:
    base = (f"model.path={folder('qwen_vl')}", f"trainer.run_dir={tmp_path / 'run'}", "model.lora.rank=2")
    outcome = cli("train", recipe("qwen_vl", "grpo_colours"), *base, *SMALL, *change)
    assert outcome.code in (1, 2)
    assert message in outcome.err


@pytest.mark.parametrize(("name", "task"), [("grpo", "colours"), ("gspo", "colours")])
def test_algorithms_learn_to_see_and_to_hear(cli: Cli, tmp_path: Path, name: str, task: str) -> None:
    """From an omni model that answers at random, on media that it has never been shown."""
    overrides = (f"model.path={folder('qwen3_omni/answers')}", f"trainer.run_dir={tmp_path / 'run'}")
    assert registry.spec("algorithm", name)
    outcome = cli("train", recipe("qwen3_omni", f"{name}_{task}"), *overrides, "trainer.progress=off")
    assert outcome.code == 0, outcome.err
    rows = metrics(tmp_path / "run")
    before, after = rows[0]["validation/reward_mean"], rows[-1]["validation/reward_mean"]
    assert before <= 0.4
    assert after >= before + 0.35
