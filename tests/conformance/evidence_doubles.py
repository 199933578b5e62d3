"""A context around the toy model on the real CPU, and engines with one fault each."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from omni_backends.rollout.native.engine import NativeRolloutEngine
from omni_portable.config.schema import ActorConfig, DataConfig, DeviceConfig, ModelConfig, RolloutConfig, RunConfig
from omni_portable.conformance.check import Measurement, Outcome
from omni_portable.conformance.context import Context
from omni_portable.conformance.evidence.settings import GoldenCase, GoldenSettings
from omni_portable.contracts import registry
from omni_portable.contracts.lifecycle import Ack
from omni_portable.contracts.weights import WeightStream
from tests.support.toy_adapter import register_toy

ALGORITHM = {
    "name": "flow_grpo",
    "step_kind": "cps",
    "noise_level": 0.5,
    "window_mode": "fixed",
    "stochastic_steps": [0, 1, 2],
}

SETTINGS = GoldenSettings(
    family="toy",
    path="toy",
    options={},
    num_steps=4,
    height=32,
    width=48,
    cases=(
        GoldenCase("plain", ("a cat", "a dog", "an owl"), "cps", 0.5, (0, 1, 2)),
        GoldenCase("guided", ("a cat", "rain"), "sde", 0.7, (0, 2), 2.0, "blur", 3),
    ),
    algorithm={**ALGORITHM, "clip_ratio": 0.2},
    advantages=(1.0, -1.0, 0.5),
    ratio_offsets=(0.05, -0.05, 0.4),
)


def toy_context(monkeypatch: pytest.MonkeyPatch, work: Path, **device: Any) -> Context:
    """The toy model under Flow-GRPO, eight requests per forward."""
    register_toy(monkeypatch)
    prompts = work / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": f"prompt {index}"}) + "\n" for index in range(6)))
    config = RunConfig(
        model=ModelConfig(family="toy", path="toy"),
        algorithm=dict(ALGORITHM),
        device=DeviceConfig(name="cpu", **device),
        rollout=RolloutConfig(n=4, max_num_seqs=8, num_steps=4, height=32, width=48),
        actor=ActorConfig(),
        data=DataConfig(train=str(prompts)),
    )
    return Context(registry.load("device", "cpu")(), config, work)


def by_name(outcome: Outcome) -> Mapping[str, Measurement]:
    return {measurement.name: measurement for measurement in outcome.measurements}


def broken(outcome: Outcome) -> set[str]:
    """Names of the measurements whose thresholds do not hold."""
    return {measurement.name for measurement in outcome.measurements if measurement.ok is False}


class DeafEngine(NativeRolloutEngine):
    """Acknowledges updates and hashes them as held, but goes on with its first weights."""

    def update_weights(self, stream: WeightStream, version: int) -> Ack:
        self._heard = {name: info.checksum for name, info in stream.manifest.tensors.items()}
        self._lifecycle.require_version(version)
        self._lifecycle.updated(version)
        return Ack("update_weights", version)

    def weights_checksum(self, names: Any = None) -> dict[str, str]:
        return dict(self._heard)


class CredulousEngine(NativeRolloutEngine):
    """Applies whatever arrives, without looking at the manifest."""

    def update_weights(self, stream: WeightStream, version: int) -> Ack:
        self._weights.replace(dict(stream))
        self._lifecycle.updated(version)
        return Ack("update_weights", version)


def serve(monkeypatch: pytest.MonkeyPatch, kind: str, engine: type) -> None:
    """Whatever engine of a kind ('rollout_engine', 'train_engine') is asked for, this class answers."""
    load = registry.load
    monkeypatch.setattr(registry, "load", lambda asked, name: engine if asked == kind else load(asked, name))
