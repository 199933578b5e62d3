"""The check of other rollout engines passes on one that agrees and catches one that does not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from omni_backends.rollout.native import SPEC
from omni_backends.rollout.native.engine import NativeRolloutEngine
from omni_portable.conformance.check import NotRun
from omni_portable.conformance.checks.consistency_engines import ENGINE_CHECKS
from omni_portable.contracts import registry
from omni_portable.contracts.errors import PluginError
from omni_portable.contracts.rollout import RolloutResult
from tests.conformance.evidence_doubles import broken, by_name, toy_context

(CHECK,) = ENGINE_CHECKS


class OtherEngine(NativeRolloutEngine):
    """Agrees with the native one, which it is."""

    name = "native"


class ShiftedEngine(OtherEngine):
    """Log-probs that are off by a little."""

    async def generate(self, requests: Sequence[Any]) -> RolloutResult:
        found = await super().generate(requests)
        return replace(found, trajectories=[replace(t, log_probs=t.log_probs + 3e-5) for t in found.trajectories])


class CrowdedEngine(OtherEngine):
    """A sample depends on what it is batched with."""

    async def generate(self, requests: Sequence[Any]) -> RolloutResult:
        found = await super().generate(requests)
        shift = 1e-4 if len(requests) == 1 else 0.0
        return replace(found, trajectories=[replace(t, log_probs=t.log_probs + shift) for t in found.trajectories])


def offer(monkeypatch: pytest.MonkeyPatch, engine: Any, **capabilities: Any) -> None:
    """Register `engine` as 'other'."""
    spec = replace(SPEC, name="other", capabilities={**SPEC.capabilities, "multi_process": True, **capabilities})
    names, found, load = registry.names, registry.spec, registry.load
    monkeypatch.setattr(
        registry, "names", lambda kind: ["native", "other"] if kind == "rollout_engine" else names(kind)
    )
    monkeypatch.setattr(registry, "spec", lambda kind, name: spec if name == "other" else found(kind, name))
    monkeypatch.setattr(registry, "load", lambda kind, name: engine if name == "other" else load(kind, name))


def test_an_engine_that_agrees_passes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    context = toy_context(monkeypatch, tmp_path)
    offer(monkeypatch, OtherEngine)
    outcome = CHECK.run(context)
    assert broken(outcome) == set()
    figures = by_name(outcome)
    assert figures["other/log_prob_gap_to_actor"].value == 0.0
    assert figures["other/media_gap_to_native"].value == 0.0
    assert figures["other/samples"].value == 8
    assert outcome.facts["engines"] == "other"


@pytest.mark.parametrize(
    ("engine", "caught"),
    [
        (ShiftedEngine, {"other/log_prob_gap_to_actor", "other/log_prob_gap_to_native"}),
        (CrowdedEngine, {"other/log_prob_gap_alone"}),
    ],
)
def test_an_engine_that_differs_is_caught(
    engine: type, caught: set[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    context = toy_context(monkeypatch, tmp_path)
    offer(monkeypatch, engine)
    assert broken(CHECK.run(context)) == caught


def test_in_bf16_figures_are_recorded_and_not_judged(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    context = toy_context(monkeypatch, tmp_path, dtype="bfloat16")
    offer(monkeypatch, ShiftedEngine)
    outcome = CHECK.run(context)
    assert {measurement.ok for measurement in outcome.measurements} == {None}
    assert outcome.facts["dtype"] == "bfloat16"


def test_an_engine_that_is_not_installed_is_not_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def absent(setup: Any) -> Any:
        raise PluginError("rollout.engine=other needs the package 'other', which is not installed")

    context = toy_context(monkeypatch, tmp_path)
    offer(monkeypatch, absent)
    with pytest.raises(NotRun, match="other: rollout.engine=other needs the package 'other'"):
        CHECK.run(context)


@pytest.mark.parametrize("capabilities", [{"families": ("sd3",)}, {"kinds": ("autoregressive",)}])
def test_engines_that_do_not_serve_the_model_are_left_out(
    capabilities: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    context = toy_context(monkeypatch, tmp_path)
    offer(monkeypatch, OtherEngine, **capabilities)
    with pytest.raises(NotRun, match="serves model.family=toy"):
        CHECK.run(context)
