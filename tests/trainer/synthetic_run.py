"""Writes a run directory as training would, with made-up figures."""

from __future__ import annotations

import json
import random
from pathlib import Path

from PIL import Image, ImageDraw

CONFIG = """recipe: recipes/sd3/flow_grpo_ocr_tiny.yaml
model: {family: sd3, path: "builtin:glyph-sd3", lora: {rank: 0}}
algorithm: {name: flow_grpo, clip_ratio: 1.0e-05}
rollout: {height: 32, width: 48, n: 16}
reward: {scorers: {ocr: {kind: ocr, weight: 1.0}}}
trainer: {total_steps: 20, seed: 0}
consistency: {max_logprob_gap: 0.001}
"""

ENVIRONMENT = {
    "device": {"name": "cpu", "model": "Test CPU <16 cores>", "count": 1},
    "versions": {"torch": "2.13.0", "python": "3.11.7"},
    "attention": {"transformer": {"family": "sdpa", "actor": "native", "reason": "default"}},
    "attention_verified": [
        {
            "choice": {"component": "transformer"},
            "max_forward_error": 5e-7,
            "max_backward_error": None,
            "tolerance": 1e-5,
        }
    ],
    "extra": {"anything": ["else", {"may": "stand"}]},
    "determinism": {"applied": {"threads": "2"}, "not_promised": ["other thread counts"]},
}

STAGES = {"rollout": 1.4, "reward": 0.5, "update": 2.6, "sync": 0.1}


def metrics_row(step: int, total: int, rng: random.Random) -> dict:
    part = step / total
    row = {
        "step": step,
        "reward/mean": 0.42 + 0.3 * part + rng.uniform(-0.02, 0.02),
        "reward/std": 0.3 - 0.1 * part,
        "reward/ocr/score": 0.42 + 0.3 * part,
        "reward/ocr/exact": 0.2 + 0.4 * part,
        "actor/ppo_kl": 1e-6 * (1 + part),
        "actor/pg_clipfrac": 0.1 + 0.1 * part,
        "actor/ratio_mean": 1.0 + rng.uniform(-1e-5, 1e-5),
        "actor/grad_norm": 1.0 + rng.random(),
        "actor/lr": 1e-4,
        "rollout_corr/logprob_abs_diff/mean": 2e-6,
        "rollout_corr/logprob_abs_diff/p99": 2.2e-5,
        "rollout_corr/logprob_abs_diff/max": 4e-5,
        "rollout_corr/ratio_exact_one": 1.0,
        "rollout_corr/logprob_abs_diff/ts_875": 3e-6,
        "training/rollout_actor_probs_pearson_corr": None if step == 3 else 0.9999,
        "perf/samples_per_second": 40.0,
    }
    timings = {f"timing_s/{name}": seconds * rng.uniform(0.9, 1.1) for name, seconds in STAGES.items()}
    return row | timings | {"timing_s/step": sum(timings.values())}


def write_validation(run_dir: Path, step: int, score: float, count: int = 8, size: tuple[int, int] = (48, 32)) -> None:
    folder = run_dir / "validation" / f"step_{step:06d}"
    (folder / "images").mkdir(parents=True)
    lines = []
    for index in range(count):
        text = f"{index}A"
        image = Image.new("RGB", size, (240, 240, 235))
        ImageDraw.Draw(image).text((size[0] // 3, size[1] // 3), text, fill=(20, 20, 20))
        image.save(folder / "images" / f"{index:04d}.png")
        row = {
            "index": index,
            "prompt_id": f"p{index}",
            "prompt": f'the text "{text}" <b>&',
            "sample_index": 0,
            "score": score,
            "components": {"ocr/score": score},
            "details": {"ocr": {"text": text, "target": text}},
            "image": f"images/{index:04d}.png",
        }
        lines.append(json.dumps(row))
    (folder / "samples.jsonl").write_text("\n".join(lines) + "\n")


def write_run(run_dir: Path, *, steps: int = 20, total: int = 20, finished: bool = True) -> Path:
    """A run of `total` steps that has reached `steps`."""
    run_dir.mkdir(parents=True, exist_ok=True)
    rng = random.Random(0)
    rows = [metrics_row(step, total, rng) for step in range(1, steps + 1)]
    before = {"step": 0, "validation/reward_mean": 0.41, "validation/reward_stderr": 0.02, "validation/count": 64.0}
    if finished:
        rows[-1] |= {"validation/reward_mean": 0.71, "validation/reward_stderr": 0.018, "validation/count": 64.0}
        summary = {
            "samples": 64, "before": 0.41, "before_stderr": 0.02, "after": 0.71, "after_stderr": 0.018,
            "rise": 0.30, "rise_stderr": 0.0269, "paired_rise_stderr": 0.021,
        }  # fmt: skip
        (run_dir / "summary.json").write_text(json.dumps(summary))
        write_validation(run_dir, steps, 0.71)
    write_validation(run_dir, 0, 0.41)
    (run_dir / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in [before, *rows]))
    (run_dir / "config.yaml").write_text(CONFIG)
    (run_dir / "environment.json").write_text(json.dumps(ENVIRONMENT))
    (run_dir / "plan.txt").write_text("each rollout: 12 prompts x 16 samples = 192 samples\n")
    return run_dir
