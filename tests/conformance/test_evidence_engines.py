"""The check of other rollout engines passes on one that agrees and catches one that does not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from omni_backends.rollout.native import SPEC
from omni_backends.rollout.native.engine import NativeRolloutEngine
from omni_portable.conformance.check import NotRun
from omni_portable.conformance.checks.consistency_engines import ENGINE_CHECKS
from omni_portable.contracts import registry
from omni_portable.contracts.errors import PluginError
from omni_portable.contracts.media import MediaArtifact
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


class DependentEngine(OtherEngine):
    """Latents depend on what a sample is batched with."""

    async def generate(self, requests: Sequence[Any]) -> RolloutResult:
        found = await super().generate(requests)
        shift = 2e-4 if len(requests) == 1 else 0.0
        return replace(
            found, trajectories=[replace(t, final_latents=t.final_latents + shift) for t in found.trajectories]
        )


class PaleEngine(OtherEngine):
    """Media that are off by two of 255 steps in one pixel."""

    async def generate(self, requests: Sequence[Any]) -> RolloutResult:
        found = await super().generate(requests)
        return replace(found, trajectories=[replace(t, artifacts=_pale(t.artifacts)) for t in found.trajectories])


class MuteEngine(OtherEngine):
    """Media are lost."""

    async def generate(self, requests: Sequence[Any]) -> RolloutResult:
        found = await super().generate(requests)
        return replace(found, trajectories=[replace(t, artifacts={}) for t in found.trajectories])


def _pale(artifacts: Mapping[str, MediaArtifact]) -> dict[str, MediaArtifact]:
    pale = {}
    for name, artifact in artifacts.items():
        assert isinstance(artifact.data, torch.Tensor)
        data = artifact.data.clone()
        pixel = data.view(-1)[:1]
        pixel += torch.where(pixel < 128, 2, -2).to(torch.uint8)
        pale[name] = replace(artifact, data=data)
    return pale


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
        (DependentEngine, {"other/latent_gap_alone"}),
        (PaleEngine, {"other/media_gap_to_native", "other/largest_gap_of_rounded_media"}),
        (MuteEngine, {"other/media_gap_to_native", "other/largest_gap_of_float_media"}),
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


def test_a_family_that_an_engine_refuses_is_not_run_with_its_reason(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    context = toy_context(monkeypatch, tmp_path)
    offer(monkeypatch, OtherEngine, families=("sd3",), refused_families={"toy": "it rounds"})
    with pytest.raises(NotRun, match=r"serves model.family=toy; other: it rounds"):
        CHECK.run(context)


@pytest.mark.parametrize("capabilities", [{"families": ("sd3",)}, {"kinds": ("autoregressive",)}])
def test_engines_that_do_not_serve_the_model_are_left_out(
    capabilities: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    context = toy_context(monkeypatch, tmp_path)
    offer(monkeypatch, OtherEngine, **capabilities)
    with pytest.raises(NotRun, match="serves model.family=toy"):
        CHECK.run(context)
