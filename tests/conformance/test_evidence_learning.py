"""Learning curves: statistics of the reference, the judgement, and a real run that gives one."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omni_portable.config.schema import DeviceConfig
from omni_portable.conformance.check import NotRun
from omni_portable.conformance.checks import learning as check
from omni_portable.conformance.evidence.learning import (
    LEARNING,
    Curve,
    LearningReference,
    check_keys,
    compared_keys,
    learning_config,
    read_reference,
    run_curve,
    write_reference,
)
from omni_portable.contracts.errors import ConsistencyError, DataError
from tests.conformance.evidence_doubles import broken, by_name, toy_context
from tests.support.toy_adapter import register_toy

CURVES = (
    Curve(0, (0.4, 0.5, 0.6), 0.4, 0.50),
    Curve(1, (0.5, 0.5, 0.7), 0.4, 0.52),
    Curve(2, (0.3, 0.5, 0.5), 0.4, 0.54),
)
REFERENCE = LearningReference("r", (), CURVES, {"actor.lr": 0.1}, {"date": "2026-01-02"})

RECIPE = """
model: {{family: toy, path: toy, lora: {{rank: 2}}}}
algorithm: {{name: flow_grpo, step_kind: cps, noise_level: 0.5, window_mode: fixed, stochastic_steps: [0, 1]}}
rollout: {{n: 4, max_num_seqs: 8, num_steps: 3, height: 64, width: 64}}
actor: {{lr: 1e-2}}
reward: {{scorers: {{size: {{kind: jpeg_incompressibility, kilobytes_per_point: 1.0}}}}}}
data: {{train: {folder}/train.txt, validation: {folder}/validation.txt, train_batch_size: 2}}
trainer: {{total_steps: 3}}
"""


def test_statistics_of_the_reference() -> None:
    assert REFERENCE.mean == pytest.approx([0.4, 0.5, 0.6])
    assert REFERENCE.deviation == pytest.approx(math.sqrt((0.01 + 0.0 + 0.01) / 3))
    assert REFERENCE.mean_gain == pytest.approx(0.12)
    assert REFERENCE.gain_deviation == pytest.approx(0.02)


@given(shift=st.floats(-1, 1), step=st.integers(0, 2))
def test_one_step_outside_the_band_fails(shift: float, step: int) -> None:
    rewards = [0.4, 0.5, 0.6]
    rewards[step] += shift
    outcome = check.judge(Curve(0, rewards, 0.4, 0.52), REFERENCE)
    distance = abs(shift) / REFERENCE.deviation
    assert by_name(outcome)["largest_distance_of_a_step"].value == pytest.approx(distance, abs=1e-9)
    assert (broken(outcome) == {"largest_distance_of_a_step"}) == (distance > 4.0)


@pytest.mark.parametrize(
    ("gain", "wrong"),
    [
        (0.12, set()),
        (0.041, set()),
        (0.039, {"gain_on_held_out_prompts", "distance_of_the_gain"}),
        (-0.12, {"gain_on_held_out_prompts", "distance_of_the_gain"}),
        (0.21, {"distance_of_the_gain"}),
        (math.nan, {"gain_on_held_out_prompts", "distance_of_the_gain"}),
    ],
)
def test_the_gain_must_be_clear_and_like_the_references(gain: float, wrong: set[str]) -> None:
    assert broken(check.judge(Curve(0, (0.4, 0.5, 0.6), 0.4, 0.4 + gain), REFERENCE)) == wrong


def test_a_clear_gain_is_asked_for_even_where_the_reference_hardly_gains() -> None:
    weak = replace(REFERENCE, curves=[replace(curve, after=curve.after - 0.11) for curve in CURVES])
    assert weak.mean_gain == pytest.approx(0.01)
    assert broken(check.judge(replace(CURVES[0], after=0.41), weak)) == {"gain_on_held_out_prompts"}


def test_the_plot_shows_curve_and_band() -> None:
    series = check.judge(CURVES[1], REFERENCE).series
    assert series["reward on this device"] == [0.5, 0.5, 0.7]
    for low, middle, high in zip(series["band low"], series["reference mean"], series["band high"], strict=True):
        assert (high - middle, middle - low) == pytest.approx((4 * REFERENCE.deviation,) * 2)


def test_reading_gives_back_what_was_written(tmp_path: Path) -> None:
    write_reference(tmp_path, REFERENCE)
    again = read_reference(tmp_path)
    assert [tuple(curve.rewards) for curve in again.curves] == [curve.rewards for curve in CURVES]
    assert (again.mean_gain, again.deviation, again.keys) == (
        REFERENCE.mean_gain,
        REFERENCE.deviation,
        REFERENCE.keys,
    )


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"format": 1, "curves": [{"seed": 0}]}'])
def test_damage_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / LEARNING).write_text(text)
    with pytest.raises(DataError, match="record_golden"):
        read_reference(tmp_path)


def test_one_curve_has_no_spread(tmp_path: Path) -> None:
    write_reference(tmp_path, replace(REFERENCE, curves=CURVES[:1]))
    with pytest.raises(DataError, match="record_golden"):
        read_reference(tmp_path)


@pytest.fixture
def recipe(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    register_toy(monkeypatch)
    (tmp_path / "train.txt").write_text("one\ntwo\nthree\n")
    (tmp_path / "validation.txt").write_text("four\nfive\n")
    path = tmp_path / "recipe.yaml"
    path.write_text(RECIPE.format(folder=tmp_path))
    return str(path)


def test_a_real_run_gives_its_curve(recipe: str, tmp_path: Path) -> None:
    device = DeviceConfig(name="cpu", threads=1)
    config = learning_config(recipe, ("trainer.total_steps=2",), 3, tmp_path / "run", device, None)
    curve = run_curve(config)
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert curve.rewards == [row["reward/mean"] for row in rows[1:]]
    assert (curve.seed, len(curve.rewards)) == (3, 2)
    assert curve.before == rows[0]["validation/reward_mean"]
    assert curve.after == rows[-1]["validation/reward_mean"]


def test_a_recipe_that_changed_is_refused(recipe: str, tmp_path: Path) -> None:
    device = DeviceConfig(name="cpu")
    config = learning_config(recipe, (), 0, tmp_path, device, None)
    reference = replace(REFERENCE, keys=compared_keys(config))
    other = DeviceConfig(name="cpu", dtype="bfloat16", threads=7)
    check_keys(reference, learning_config(recipe, (), 5, tmp_path / "x", other, config))
    with pytest.raises(ConsistencyError, match="rollout.n"):
        check_keys(reference, learning_config(recipe, ("rollout.n=8",), 0, tmp_path, device, None))


def test_a_key_that_came_later_is_no_change(recipe: str, tmp_path: Path) -> None:
    config = learning_config(recipe, (), 0, tmp_path, DeviceConfig(name="cpu"), None)
    keys = compared_keys(config)
    del keys["actor.ema_decay"]
    check_keys(replace(REFERENCE, keys=keys), config)
    check_keys(replace(REFERENCE, keys={**keys, "launcher.name": "one that decides nothing"}), config)


def test_a_model_without_curves_is_not_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(NotRun, match="'toy'"):
        check.CHECKS[0].run(toy_context(monkeypatch, tmp_path))


def test_the_check_trains_the_recorded_recipe(recipe: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The reference's first seed again, on the same host: the same curve, bit for bit."""
    context = toy_context(monkeypatch, tmp_path, threads=1)
    device = DeviceConfig(name="cpu", threads=1)
    configs = [learning_config(recipe, (), seed, tmp_path / f"run{seed}", device, None) for seed in (0, 1)]
    reference = LearningReference(recipe, (), [run_curve(c) for c in configs], compared_keys(configs[0]), {})
    folder = tmp_path / "golden" / "toy"
    write_reference(folder, reference)
    monkeypatch.setattr(check, "golden_folder", lambda path: folder)
    outcome = check.CHECKS[0].run(context)
    assert by_name(outcome)["largest_distance_to_the_same_seed"].value == 0.0
    assert "largest_distance_of_a_step" not in broken(outcome)
