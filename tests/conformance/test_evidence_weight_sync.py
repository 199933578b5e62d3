"""The checks of weight syncs pass on the native engine and catch engines that are deaf or credulous."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from omni_portable.conformance.check import NotRun
from omni_portable.conformance.checks.weight_sync import CHECKS
from omni_portable.contracts.errors import WeightSyncError
from tests.conformance.evidence_doubles import CredulousEngine, DeafEngine, broken, by_name, serve, toy_context

RUN = {check.id: check.run for check in CHECKS}


@pytest.mark.parametrize("name", sorted(RUN))
def test_the_native_engine_passes(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    outcome = RUN[name](toy_context(monkeypatch, tmp_path))
    assert broken(outcome) == set()
    assert any(measurement.ok for measurement in outcome.measurements)


def test_all_lora_modules_are_counted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    found = by_name(RUN["weight-sync.lora"](toy_context(monkeypatch, tmp_path)))
    assert (found["lora_modules_bound"].value, found["lora_modules_bound"].threshold) == (4, 4)
    assert found["tensors"].value == 8
    assert "lora_modules_bound" not in by_name(RUN["weight-sync.full"](toy_context(monkeypatch, tmp_path)))


@pytest.mark.parametrize("name", ["weight-sync.full", "weight-sync.lora"])
def test_an_engine_that_serves_its_first_weights_is_caught(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    serve(monkeypatch, "rollout_engine", DeafEngine)
    with pytest.raises(WeightSyncError, match="did not change although the weights changed"):
        RUN[name](toy_context(monkeypatch, tmp_path))


def test_an_engine_that_takes_damaged_updates_is_caught(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    serve(monkeypatch, "rollout_engine", CredulousEngine)
    wrong = broken(RUN["weight-sync.refused"](toy_context(monkeypatch, tmp_path)))
    assert wrong == {
        "refused_with_one_value_changed",
        "refused_with_last_tensor_missing",
        "policy_version_afterwards",
        "tensors_changed",
        "probe_change",
    }


def test_a_large_model_is_not_trained_fully_for_a_lora_recipe(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    context = toy_context(monkeypatch, tmp_path)
    context.config.model = replace(context.config.model, lora=replace(context.config.model.lora, rank=2))
    with pytest.raises(NotRun, match="trains a LoRA"):
        RUN["weight-sync.full"](context)
