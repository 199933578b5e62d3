"""The golden checks: what they pass, what they catch, and when they do not run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from omni_portable.conformance.check import NotRun
from omni_portable.conformance.checks import golden
from omni_portable.conformance.context import Context
from omni_portable.conformance.evidence import gradient
from omni_portable.conformance.evidence.record import all_figures, record, with_spread
from omni_portable.conformance.evidence.recording import golden_folder, write_recording
from tests.conformance.evidence_doubles import SETTINGS, broken, toy_context
from tests.support.toy_adapter import ToyAdapter

RUN = {check.id: check.run for check in golden.CHECKS}


@pytest.fixture
def context(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Context:
    """The toy model with a recording of it."""
    context = toy_context(monkeypatch, tmp_path)
    monkeypatch.setattr(golden, "golden_folder", lambda path: golden_folder(path, tmp_path / "golden"))
    recording = record(context.setup, SETTINGS)
    spread = {"float32": {"row by row": all_figures(context.setup, recording, 1)}}
    made = {"date": "2026-01-02", "processor": "P", "kernels": "AVX2", "versions": {"torch": "2.13.0"}}
    write_recording(tmp_path / "golden" / "toy", with_spread(recording, spread, made))
    return context


@pytest.mark.parametrize("name", sorted(RUN))
def test_the_recording_host_passes(name: str, context: Context) -> None:
    outcome = RUN[name](context)
    assert all(measurement.ok for measurement in outcome.measurements)
    assert outcome.facts == {
        "recorded": "2026-01-02",
        "recorded on": "P, kernels AVX2",
        "recorded with": "torch 2.13.0",
    }


def test_curves_cover_the_steps(context: Context) -> None:
    series = RUN["golden.trajectory"](context).series
    assert {name: len(values) for name, values in series.items()} == {
        "velocity from recorded latents": 4,
        "latents run freely": 5,
    }


def test_a_model_that_computes_a_little_off_is_caught(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    velocity = ToyAdapter.velocity
    monkeypatch.setattr(ToyAdapter, "velocity", lambda self, *args, **kw: velocity(self, *args, **kw) * (1 + 5e-4))
    assert {"velocity_error", "next_latents_error", "free_latents_error"} <= broken(RUN["golden.trajectory"](context))
    assert {"engine_latents_error"} <= broken(RUN["golden.decode"](context))
    assert {"grad_norm_error", "gradient_error"} <= broken(RUN["golden.loss-and-gradient"](context))


def test_another_text_encoder_is_caught(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    encode = ToyAdapter.encode

    def off(self, *args, **kwargs):
        return [{"tokens": one["tokens"] * 1.001} for one in encode(self, *args, **kwargs)]

    monkeypatch.setattr(ToyAdapter, "encode", off)
    assert {"text_error", "free_latents_error"} == broken(RUN["golden.trajectory"](context))


def test_a_gradient_of_the_right_norm_and_another_direction_is_caught(
    context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    def turned(tensor: torch.Tensor) -> torch.Tensor:
        return -gradient.sampled(tensor)

    monkeypatch.setattr("omni_portable.conformance.evidence.training.sampled", turned)
    assert broken(RUN["golden.loss-and-gradient"](context)) == {"gradient_error"}


@pytest.mark.parametrize("name", sorted(RUN))
def test_a_model_without_a_recording_is_not_run(name: str, context: Context) -> None:
    context.config.model = replace(context.config.model, path="/models/other")
    with pytest.raises(NotRun, match="no recording for the model 'other'"):
        RUN[name](context)


def test_a_dtype_without_bounds_is_not_run(context: Context) -> None:
    device = replace(context.config.device, dtype="bfloat16")
    narrow = Context(context.device, replace(context.config, device=device), context.work)
    with pytest.raises(NotRun, match="no bounds for the dtype bfloat16"):
        RUN["golden.trajectory"](narrow)
