"""A profile: measured steps of one workload under known placements, as a JSON file (`profile.schema.json`)."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from omni_portable.contracts.errors import ConfigError

SCHEMA = "omni-portable/placement-profile"
SCHEMA_VERSION = 1
SCHEMA_FILE = Path(__file__).with_name("profile.schema.json")
MODES = ("sync", "separate_async", "fully_async")
INTERRUPTED = ("continue", "restart")
DOUBLING = 0.75
"""Efficiency that each doubling of tensor parallelism keeps, where a profile does not say otherwise."""


LARGEST_FILE = 1 << 24
"""Characters of a profile at most."""


@dataclass(frozen=True)
class Placement:
    """Who has which devices.

    Args:
        mode: one of MODES.
        devices: of rollout and trainer together.
        rollout_devices: those of rollout alone; equal to `devices` under 'sync', where both take turns on all.
        tensor_parallel: devices of one rollout replica.
        prompts: of one step.
        max_staleness: largest difference of policy versions; 0 lets nothing run ahead.
        sync_rounds: steps between publications of the weights.
    """

    mode: str
    devices: int
    rollout_devices: int
    tensor_parallel: int = 1
    prompts: int = 1
    max_staleness: int = 0
    sync_rounds: int = 1

    @property
    def train_devices(self) -> int:
        return self.devices if self.mode == "sync" else self.devices - self.rollout_devices

    @property
    def replicas(self) -> int:
        return self.rollout_devices // self.tensor_parallel

    @property
    def split(self) -> str:
        """'trainer+rollout (replicas x TP)'; all + 0 where they take turns."""
        alone = 0 if self.mode == "sync" else self.rollout_devices
        return f"{self.train_devices}+{alone} ({self.replicas}xTP{self.tensor_parallel})"


@dataclass(frozen=True)
class Row:
    """One measurement, in seconds of one step: `step_s`, or the stages, or both.

    Args:
        tokens: mean response tokens per sample; 0 where samples are not made of tokens.
        step_s: the whole step, as it repeats.
        rollout_s / train_s / reward_s: seconds in which that role was busy.
        sync_s: seconds in which new weights were brought to rollout.
        switch_s: seconds in which rollout was put to sleep and woken again ('sync' only).
    """

    placement: Placement
    tokens: float
    step_s: float | None = None
    rollout_s: float | None = None
    train_s: float | None = None
    reward_s: float | None = None
    sync_s: float | None = None
    switch_s: float | None = None

    @property
    def staged(self) -> bool:
        """Are rollout and training told apart?"""
        return self.rollout_s is not None and self.train_s is not None


@dataclass(frozen=True)
class Profile:
    """Measurements of one workload.

    Args:
        source: where the figures are from.
        context_tokens: response length after which a token costs twice what the first one does (reading the context
            then takes as long as everything else); 0 where a token always costs the same.
        tensor_parallel_efficiency: devices per replica -> speed per device relative to a replica of one device.
        samples_per_prompt: size of a group.
        interrupted: what an interrupted request does under 'fully_async': 'continue' loses nothing, 'restart' all.
    """

    name: str
    rows: tuple[Row, ...]
    source: str = ""
    context_tokens: float = 0.0
    tensor_parallel_efficiency: Mapping[int, float] = field(default_factory=dict)
    samples_per_prompt: int = 1
    interrupted: str = "restart"

    def efficiency(self, tensor_parallel: int) -> float:
        """Speed of each device of a replica, relative to a replica of one device."""
        known = self.tensor_parallel_efficiency.get(tensor_parallel)
        return known if known is not None else float(DOUBLING ** math.log2(tensor_parallel))

    def weight(self, tokens: float) -> float:
        """Cost of a response in tokens at its start: tokens + tokens^2 / (2 context_tokens)."""
        return tokens + (tokens * tokens / (2 * self.context_tokens) if self.context_tokens else 0.0)

    def only(self, *rows: Row) -> Profile:
        """The same workload with these measurements."""
        return dataclasses.replace(self, rows=rows)


def load_profile(path: Path) -> Profile:
    """Read and check a profile.

    Raises:
        ConfigError: there is no such file, it is no JSON, or a key is missing, unknown or of the wrong kind.
    """
    try:
        with path.open(encoding="utf-8") as file:
            text = file.read(LARGEST_FILE + 1)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the profile {path} cannot be read: {error}", remedy="name a JSON file") from error
    if len(text) > LARGEST_FILE:
        raise ConfigError(f"the profile {path} is longer than {LARGEST_FILE} characters", remedy="name a JSON file")
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"the profile {path} is no JSON: {error}", remedy="write it again, or mend it") from error
    from omni_portable.planning.placement.parse import parse_profile

    return parse_profile(document, str(path))


def profile_document(profile: Profile) -> dict[str, Any]:
    """The profile as `load_profile` reads it."""
    rows = []
    for row in profile.rows:
        placed = dataclasses.asdict(row.placement)
        if row.placement.mode == "sync":
            for name in ("rollout_devices", "max_staleness", "sync_rounds"):
                del placed[name]
        measured = {k: v for k, v in dataclasses.asdict(row).items() if k != "placement" and v is not None}
        rows.append(placed | measured)
    return {
        "schema": SCHEMA,
        "schema_version": SCHEMA_VERSION,
        "name": profile.name,
        "source": profile.source,
        "context_tokens": profile.context_tokens,
        "tensor_parallel_efficiency": {str(k): v for k, v in sorted(profile.tensor_parallel_efficiency.items())},
        "samples_per_prompt": profile.samples_per_prompt,
        "interrupted": profile.interrupted,
        "rows": rows,
    }
