"""Throughput is recorded and never judged."""

from __future__ import annotations

from pathlib import Path

import pytest

from omni_portable.conformance.check import Check
from omni_portable.conformance.checks.throughput import CHECKS
from tests.conformance.evidence_doubles import by_name, toy_context

RATES = {
    "throughput.rollout": "images_per_second",
    "throughput.train-step": "samples_per_second",
    "throughput.weight-sync": "megabytes_per_second",
}


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.id)
def test_rates_and_memory_are_recorded(check: Check, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    outcome = check.run(toy_context(monkeypatch, tmp_path))
    found = by_name(outcome)
    assert found[RATES[check.id]].value > 0
    assert found["memory_peak"].value >= found["memory_used"].value > 0
    assert all(measurement.ok is None for measurement in outcome.measurements)


def test_images_are_counted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    outcome = CHECKS[0].run(toy_context(monkeypatch, tmp_path))
    assert outcome.detail.startswith("16 images of 48 x 32 pixels in 4 steps, 8 per forward")
    shares = [measurement.value for name, measurement in by_name(outcome).items() if name.startswith("share_of_")]
    assert 0 < sum(shares) <= 1.0
