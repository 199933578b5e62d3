"""Whole runs through the command line: files, metrics, exact on-policy ratios, sleep, dropped groups."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
from diffusers import SD3Transformer2DModel
from PIL import Image
from safetensors.torch import load_file

from omni_portable.config.loader import load_config, read_config
from omni_portable.trainer.checkpoint import list_checkpoints, read_checkpoint
from tests.e2e.rundirs import checkpoints, differences, equal_tensors, metrics, tensors, validation_scores

EVERY_STEP = {
    "reward/mean", "reward/std", "reward/size/score", "reward/size/kilobytes", "reward/dropped_groups",
    "actor/loss", "actor/ppo_kl", "actor/pg_clipfrac", "actor/ratio_mean", "actor/ratio_std", "actor/grad_norm",
    "actor/lr", "actor/optimizer_steps",
    "rollout_corr/logprob_abs_diff/mean", "rollout_corr/logprob_abs_diff/p99", "rollout_corr/logprob_abs_diff/max",
    "rollout_corr/kl", "rollout_corr/ratio_mean", "rollout_corr/ratio_exact_one",
    "training/rollout_actor_probs_pearson_corr",
    "timing_s/rollout", "timing_s/reward", "timing_s/update", "timing_s/sync", "timing_s/step",
}  # fmt: skip
"""What DESIGN section 4 and the run directory promise of every step, timings included."""
VALIDATION = {"validation/reward_mean", "validation/reward_stderr", "validation/count", "validation/size/score"}

FULL = ("actor.mini_batch_size=0",)
LORA = (
    "model.lora.rank=4",
    "algorithm.step_kind=sde",
    "rollout.guidance_scale=2.0",
    "rollout.negative_prompt=grey",
    "actor.mini_batch_size=4",
    "rollout.n=4",
    "actor.ema_decay=0.5",
)
DANCE = (
    "algorithm.step_kind=dance_sde",
    "algorithm.window_mode=random",
    "algorithm.window_size=2",
    "algorithm.stochastic_steps=[]",
    "algorithm.kl_coef=0.05",
    "consistency.measure=full",
    "trainer.total_steps=2",
)
VARIANTS = {"full": FULL, "lora": LORA, "dance": DANCE}


@pytest.fixture(scope="module")
def finished(workshop: Path, tmp_path_factory: pytest.TempPathFactory):
    """Run directories of the variants, each made once when first asked for."""
    made: dict[str, Path] = {}

    def get(name: str, train) -> Path:
        if name not in made:
            run_dir = tmp_path_factory.mktemp("runs") / name
            outcome = train(run_dir, *VARIANTS[name])
            assert outcome.code == 0, outcome.err
            made[name] = run_dir
        return made[name]

    return get


@pytest.mark.parametrize("name", VARIANTS)
def test_ratios_are_exactly_one_before_any_update(name: str, finished, train) -> None:
    rows = metrics(finished(name, train))
    total = 2 if name == "dance" else 3
    assert sorted(rows) == list(range(total + 1))
    for step in range(1, total + 1):
        assert rows[step]["rollout_corr/ratio_exact_one"] == 1.0
        assert rows[step]["rollout_corr/logprob_abs_diff/max"] == 0.0
        assert rows[step]["training/rollout_actor_probs_pearson_corr"] == 1.0
        assert rows[step]["actor/grad_norm"] > 0.0
        assert rows[step]["replay/staleness/max"] == 0.0
    assert rows[1]["rollout_corr/batch_shape_gap/max"] <= 1e-4
    assert {n for n in rows[1] if "batch_shape_gap/" in n} >= {f"rollout_corr/batch_shape_gap/{b}" for b in (1, 2, 4)}


@pytest.mark.parametrize("name", VARIANTS)
def test_every_promised_metric_is_there_and_finite(name: str, finished, train) -> None:
    lines = (finished(name, train) / "metrics.jsonl").read_text().splitlines()
    rows = {row["step"]: row for row in map(json.loads, lines)}
    assert rows[0].keys() >= VALIDATION
    assert rows[max(rows)].keys() >= VALIDATION
    for step, row in rows.items():
        assert step == 0 or row.keys() >= EVERY_STEP, EVERY_STEP - row.keys()
        assert step == 0 or sum(key.startswith("rollout_corr/logprob_abs_diff/ts_") for key in row) == 2
        assert all(math.isfinite(value) for value in row.values())


def test_the_run_directory_holds_what_is_promised(finished, train, workshop: Path) -> None:
    run_dir = finished("full", train)
    assert {p.name for p in run_dir.iterdir()} >= {
        "config.yaml", "environment.json", "plan.txt", "metrics.jsonl", "validation", "checkpoints", "summary.json",
        "report.html", "log.txt", "run.lock", "export",
    }  # fmt: skip
    again = load_config(str(workshop / "recipe.yaml"), [f"trainer.run_dir={run_dir}", *FULL])
    assert read_config(run_dir / "config.yaml") == again
    environment = json.loads((run_dir / "environment.json").read_text())
    assert environment["device"]["name"] == "cpu"
    assert environment["attention"]["transformer"]["family"] == "sdpa"
    assert environment["versions"]["torch"] == torch.__version__
    assert {r["choice"]["component"] for r in environment["attention_verified"]} >= {"transformer", "text_encoder"}
    assert checkpoints(run_dir) == ["step_000002", "step_000003"], "keep_checkpoints is 2"
    for folder in list_checkpoints(run_dir / "checkpoints"):
        assert read_checkpoint(folder).step == int(folder.name[-6:])
    assert "<html" in (run_dir / "report.html").read_text()


def test_validation_is_the_same_prompts_and_can_be_read_back(finished, train) -> None:
    run_dir = finished("full", train)
    scores = validation_scores(run_dir)
    assert list(scores) == ["step_000000", "step_000003"]
    assert all(len(values) == 2 for values in scores.values())
    rows, summary = metrics(run_dir), json.loads((run_dir / "summary.json").read_text())
    for folder, step, name in (("step_000000", 0, "before"), ("step_000003", 3, "after")):
        mean = sum(scores[folder]) / 2
        assert rows[step]["validation/reward_mean"] == pytest.approx(mean)
        assert summary[name] == pytest.approx(mean)
        assert (run_dir / "validation" / folder / "images" / "0001.png").is_file()
        assert (run_dir / "validation" / folder / "grid.png").is_file()
    assert summary["rise"] == pytest.approx(summary["after"] - summary["before"])


def test_full_training_exports_a_transformer_that_diffusers_loads(finished, train, workshop: Path) -> None:
    folder = finished("full", train) / "export"
    exported = SD3Transformer2DModel.from_pretrained(folder).state_dict()
    base = load_file(workshop / "sd3" / "transformer" / "diffusion_pytorch_model.safetensors")
    assert exported.keys() == base.keys()
    changed = [name for name in base if not torch.equal(base[name], exported[name])]
    assert len(changed) > len(base) / 2


def test_lora_exports_the_average_of_its_matrices(finished, train) -> None:
    run_dir = finished("lora", train)
    exported = load_file(run_dir / "export" / "adapter_model.safetensors")
    last = tensors(run_dir / "checkpoints" / "step_000003" / "actor")
    prefix = "base_model.model."
    for name, value in exported.items():
        plain = name.removeprefix(prefix)
        assert torch.equal(value, last[f"ema.safetensors:{plain}"])
    moved = [n for n in exported if not torch.equal(exported[n], last[f"weights.safetensors:{n.removeprefix(prefix)}"])]
    assert moved, "the average is not the last policy"
    assert any("lora_B" in name and value.abs().max() > 0 for name, value in exported.items())


def test_mini_batches_are_optimizer_steps(finished, train) -> None:
    assert metrics(finished("lora", train))[1]["actor/optimizer_steps"] == 2.0
    assert metrics(finished("full", train))[1]["actor/optimizer_steps"] == 1.0


def test_the_output_shows_plan_steps_and_result(train, tmp_path: Path, workshop: Path) -> None:
    outcome = train(tmp_path / "run", "trainer.total_steps=1", "trainer.loggers=[jsonl,tensorboard]")
    assert outcome.code == 0, outcome.err
    assert "2 prompts x 2 samples = 4 samples" in outcome.out
    assert "step 0/1 | validation" in outcome.out
    assert "step 1/1 | reward" in outcome.out
    assert "On 2 held-out samples" in outcome.out
    assert str(tmp_path / "run" / "report.html") in outcome.out
    assert outcome.err == ""
    assert any((tmp_path / "run" / "tensorboard").iterdir())


@pytest.mark.parametrize(("name", "level"), [("full", 1), ("lora", 2)])
def test_sleep_changes_no_number(name: str, level: int, finished, train, tmp_path: Path) -> None:
    awake = finished(name, train)
    sleeps = (f"rollout.sleep_level={level}", "trainer.actor_sleeps=[optimizer,weights]")
    outcome = train(tmp_path / "run", *VARIANTS[name], *sleeps)
    assert outcome.code == 0, outcome.err
    assert differences(metrics(awake), metrics(tmp_path / "run")) == []
    assert equal_tensors(awake / "export", tmp_path / "run" / "export")


@pytest.mark.parametrize(
    "overrides",
    [("actor.lr=1e-12", "actor.weight_decay=0"), ("device.dtype=bfloat16", "model.lora.rank=4", "actor.lr=1e-8")],
    ids=["float32", "bfloat16"],
)
def test_an_update_that_rounding_swallows_is_no_failed_sync(overrides: tuple[str, ...], train, tmp_path: Path) -> None:
    outcome = train(tmp_path / "run", *overrides, "trainer.total_steps=2", "data.validation=''")
    assert outcome.code == 0, outcome.err
    assert metrics(tmp_path / "run")[2]["rollout_corr/ratio_exact_one"] == 1.0


def test_drop_group_leaves_the_prompt_out_and_goes_on(train, doubles, tmp_path: Path) -> None:
    scorer = "reward.scorers={s: {kind: brittle, at: step-1/00001}}"
    outcome = train(tmp_path / "run", scorer, "reward.on_error=drop_group", "trainer.total_steps=2")
    assert outcome.code == 0, outcome.err
    rows = metrics(tmp_path / "run")
    assert (rows[1]["reward/groups"], rows[1]["reward/dropped_groups"]) == (1.0, 1.0)
    assert (rows[2]["reward/groups"], rows[2]["reward/dropped_groups"]) == (2.0, 0.0)
    assert rows[1]["reward/s/score"] > 0.0


def test_a_validation_prompt_without_score_is_null_and_left_out(train, doubles, tmp_path: Path) -> None:
    scorer = "reward.scorers={s: {kind: undefined, at: validation/00000}}"
    outcome = train(tmp_path / "run", scorer, "reward.on_error=drop_group", "trainer.total_steps=1")
    assert outcome.code == 0, outcome.err
    scores = validation_scores(tmp_path / "run")
    assert [[value is None for value in values] for values in scores.values()] == [[True, False]] * 2
    assert metrics(tmp_path / "run")[0]["validation/count"] == 1.0
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["samples"] == 1


def test_validation_may_draw_larger_samples_in_more_steps(train, tmp_path: Path) -> None:
    changes = ("validation.num_steps=6", "validation.height=64", "validation.guidance_scale=2", "trainer.total_steps=1")
    outcome = train(tmp_path / "run", *changes)
    assert outcome.code == 0, outcome.err
    for step in (0, 1):
        with Image.open(tmp_path / "run" / "validation" / f"step_{step:06d}" / "images" / "0000.png") as image:
            assert image.size == (32, 64)
    assert metrics(tmp_path / "run")[1]["rollout_corr/ratio_exact_one"] == 1.0
    assert "with num_steps 6, height 64, guidance_scale 2" in (tmp_path / "run" / "plan.txt").read_text()
