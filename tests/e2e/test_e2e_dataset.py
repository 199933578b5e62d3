"""Runs on given samples through the command line, as recipes of the package have them, two steps each."""

from __future__ import annotations

import json

import pytest

from omni_portable.cli import main
from tests.e2e.rundirs import metrics

SHORT = (
    "trainer.total_steps=2",
    "trainer.validate_interval=0",
    "trainer.progress=plain",
    "data.max_validation_prompts=8",
    "data.train_batch_size=4",
)


@pytest.mark.parametrize(
    ("recipe", "expected"),
    [
        ("sd3/sft_glyphs_tiny", {"reward/samples": 4.0}),
        ("sd3/diffusion_dpo_offline_tiny", {"reward/samples": 8.0, "reward/preference/score": 0.5}),
    ],
)
def test_packaged_recipes_train_on_given_samples_and_validate_on_drawn_ones(tmp_path, capsys, recipe, expected):
    assert main(["train", recipe, *SHORT, f"trainer.run_dir={tmp_path}/run"]) == 0, capsys.readouterr().err
    rows = metrics(tmp_path / "run")
    assert sorted(rows) == [0, 1, 2]
    assert {name: rows[1][name] for name in expected} == expected
    assert rows[1]["reward/ocr/score"] > 0.5, "the scorer reads the given pictures"
    assert rows[1]["actor/grad_norm"] > 0
    assert rows[2]["validation/count"] == rows[0]["validation/count"] == 8.0
    written = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert json.loads(written[2])["perf/rollout/forwards"] < 20, "nothing is denoised but the probe and the validation"
    assert (tmp_path / "run" / "validation" / "step_000002" / "images" / "0007.png").is_file()


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["algorithm={name: flow_grpo}", "rollout.n=1"], "flow_grpo"),
        (["rollout.engine=native"], "algorithm 'sft' imitates samples"),
        (
            ["rollout.engine=native", "algorithm={name: diffusion_dpo}", "rollout.n=2"],
            "data.targets is set, but rollout.engine=native draws its samples itself",
        ),
        (["data.targets={}"], "rollout.engine=dataset takes samples from the dataset, but data.targets is empty"),
        (["data.targets={video: {fields: [img_win]}}"], "model family 'sd3' makes no artifact 'video'"),
    ],
)
def test_recipes_that_cannot_work_are_refused(capsys, overrides, message):
    assert main(["train", "sd3/sft_glyphs_tiny", *overrides, "--dry-run"]) == 2
    assert message in capsys.readouterr().err


def test_a_pair_with_a_missing_side_is_named_before_anything_loads(tmp_path, capsys):
    overrides = ["data.targets={image: {fields: [img_win, img_loose]}}", "data.train_batch_size=4"]
    assert main(["train", "sd3/diffusion_dpo_offline_tiny", *overrides, f"trainer.run_dir={tmp_path}/run"]) == 1
    assert "train.parquet row 1: field 'img_loose' is missing" in capsys.readouterr().err


def test_the_plan_of_given_samples_has_no_denoising_steps(capsys):
    assert main(["train", "sd3/sft_glyphs_tiny", "--dry-run"]) == 0
    plan = capsys.readouterr().out
    assert "from the dataset (image), none of them drawn" in plan
    assert "denoising steps" not in plan
    assert "on-policy" not in plan
