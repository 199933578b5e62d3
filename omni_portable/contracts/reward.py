"""The reward seam: scorers see samples, ask for artifacts by name, and return one finite score per sample.

A scorer's spec (`PluginSpec.capabilities`) declares 'artifacts' (mapping of option name or artifact name -> modality)
and 'fields' (option name or name of a metadata field that a prompt must have), so that a dataset is checked before the
run. A name that is also an option stands for that option's value, in place of a modality too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from omni_portable.contracts.media import MediaArtifact

GIVEN_SAMPLE = "given_sample"
"""Metadata of a sample that a dataset gave: its position among those of its prompt (of a pair, 0 is the chosen one)."""


@dataclass(frozen=True)
class RewardSample:
    """One sample as a scorer sees it."""

    sample_id: str
    group_id: str
    prompt: str
    artifacts: Mapping[str, MediaArtifact]
    metadata: Mapping[str, Any] = field(default_factory=dict)


@dataclass
class RewardOutput:
    """Scores of N samples.

    Args:
        scores: N floats, higher is better.
        components: name -> N floats, logged as reward/<scorer>/<name>.
        details: N mappings for reports (e.g. the recognised text).
    """

    scores: list[float]
    components: dict[str, list[float]] = field(default_factory=dict)
    details: list[dict[str, Any]] = field(default_factory=list)


@dataclass
class ComposedReward:
    """Rewards of N samples.

    Args:
        total: weighted sums, finite for every sample that is not in `failed`, NaN for those that are.
        components: '<scorer>/score' and '<scorer>/<component>' -> N floats (NaN where that scorer failed).
        details: one mapping per sample, scorer -> what it reports.
        failed: sample ids without a reward, in sample order; only with `on_error: drop_group`.
        seconds: scorer -> wall time.
        errors: failed sample id -> what went wrong.
    """

    total: list[float]
    components: dict[str, list[float]]
    details: list[dict[str, Any]]
    failed: list[str]
    seconds: dict[str, float]
    errors: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class ScorerRequirements:
    """Artifacts (name -> modality) and metadata fields a scorer needs of every sample."""

    artifacts: Mapping[str, str] = field(default_factory=dict)
    fields: tuple[str, ...] = ()


@runtime_checkable
class Scorer(Protocol):
    """Constructed as ``Scorer(options)``."""

    name: str
    requires: ScorerRequirements

    def score(self, batch: Sequence[RewardSample]) -> RewardOutput: ...


class Scoring(Protocol):
    """A composed reward, here or in another process."""

    async def score_async(self, samples: Sequence[RewardSample]) -> ComposedReward: ...
