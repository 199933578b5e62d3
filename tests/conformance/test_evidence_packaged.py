"""The recordings in the package: small, complete, of the packaged weights and recipe, and met by this host."""

from __future__ import annotations

import importlib.util
import json
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
import torch

from omni_portable.config.assets import assets_root, packaged
from omni_portable.config.schema import DeviceConfig
from omni_portable.conformance.check import Check
from omni_portable.conformance.checks import golden
from omni_portable.conformance.checks.learning import judge
from omni_portable.conformance.evidence.learning import check_keys, learning_config, read_reference
from omni_portable.conformance.evidence.recording import check_weights, read_recording
from tests.conformance.conformance_doubles import context
from tests.conformance.evidence_doubles import broken

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = sorted(path for path in (assets_root() / "golden").iterdir() if path.is_dir())


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("record_golden", ROOT / "tools" / "record_golden.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def test_every_plan_is_recorded(tool: ModuleType) -> None:
    assert [folder.name for folder in FOLDERS] == sorted(tool.PLANS)


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_they_are_small_and_say_where_they_come_from(folder: Path) -> None:
    assert sum(path.stat().st_size for path in folder.iterdir()) < 1_000_000
    for about in (read_recording(folder).provenance, read_reference(folder).provenance):
        assert {"date", "versions", "processor", "isa", "kernels", "threads", "dtype"} <= about.keys()
        assert about["versions"]["torch"]
    assert "/tmp" not in "".join(path.read_text() for path in folder.glob("*.json"))


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_they_are_of_the_packaged_weights_and_of_the_plan(folder: Path, tool: ModuleType) -> None:
    recording, plan = read_recording(folder), tool.PLANS[folder.name]
    check_weights(recording, packaged(folder.name))
    texts = [json.dumps(one.as_data(), sort_keys=True) for one in (recording.settings, plan.settings)]
    assert texts[0] == texts[1]
    reference = read_reference(folder)
    assert (reference.recipe, tuple(reference.overrides)) == (plan.recipe, plan.overrides)
    assert tuple(curve.seed for curve in reference.curves) == plan.seeds
    assert len(plan.seeds) >= 5
    config = learning_config(plan.recipe, plan.overrides, 0, Path("x"), DeviceConfig(name="cpu"), None)
    check_keys(reference, config)


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_bounds_tell_dtypes_apart(folder: Path) -> None:
    """What bf16 or a ten-bit mantissa does to a figure does not pass for fp32."""
    recording = read_recording(folder)
    fp32 = recording.bounds["float32"]
    for dtype in ("bfloat16", "float16"):
        variant = next(iter(recording.spread[dtype].values()))
        for name in ("velocity_error", "next_latents_error", "free_latents_error", "gradient_error", "text_error"):
            assert variant[name] > 5 * fp32[name]
            assert variant[name] < recording.bounds[dtype][name]


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_the_reference_learns(folder: Path) -> None:
    reference = read_reference(folder)
    assert reference.mean_gain > 2.5 * reference.gain_deviation
    assert all(curve.gain > 0 for curve in reference.curves)


@pytest.mark.parametrize("check", golden.CHECKS, ids=lambda check: check.id)
def test_this_host_meets_the_recording(check: Check, tmp_path: Path) -> None:
    outcome = check.run(context(tmp_path))
    assert broken(outcome) == set()
    assert all(measurement.relation == "<=" for measurement in outcome.measurements)


def test_reduced_precision_does_not_pass_for_fp32(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first matrix of the transformer in eleven bits of mantissa, as TF32 has them, is caught."""
    forward = torch.nn.Linear.forward

    def rounded(self: torch.nn.Linear, values: torch.Tensor) -> torch.Tensor:
        return forward(self, values.half().float())

    monkeypatch.setattr(torch.nn.Linear, "forward", rounded)
    wrong = broken(golden.CHECKS[0].run(context(tmp_path)))
    assert {"velocity_error", "next_latents_error", "free_latents_error"} <= wrong


def test_the_tool_compares(tool: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    plan, folder = tool.PLANS["glyph-sd3"], assets_root() / "golden" / "glyph-sd3"
    figures = dict.fromkeys(read_recording(folder).bounds["float32"], 0.0)
    monkeypatch.setattr(tool, "all_figures", lambda setup, recording: figures)
    assert tool.check_trajectory(plan, folder)
    assert "bit for bit" in capsys.readouterr().out.splitlines()
    figures["velocity_error"] = 1e-3
    assert not tool.check_trajectory(plan, folder)
    assert "FAILED velocity_error" in capsys.readouterr().out
    other = replace(plan, settings=replace(plan.settings, num_steps=9))
    monkeypatch.setitem(tool.PLANS, "glyph-sd3", other)
    assert not tool.check_trajectory(other, folder)
    assert "settings of glyph-sd3 have changed" in capsys.readouterr().out


def test_every_variant_has_its_environment(tool: ModuleType) -> None:
    assert tool.VARIANTS.keys() == tool.ENVIRONMENTS.keys()
    names = [name for variants in tool.VARIANTS.values() for name in variants]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_a_device_that_does_not_learn_is_caught(folder: Path) -> None:
    reference = read_reference(folder)
    first = reference.curves[0]
    flat = replace(first, rewards=[first.rewards[0]] * len(first.rewards), after=first.before)
    assert broken(judge(flat, reference)) == {
        "largest_distance_of_a_step",
        "distance_of_the_gain",
        "gain_on_held_out_prompts",
    }
    assert all(broken(judge(curve, reference)) == set() for curve in reference.curves)
