"""A group in two columns: what training reads, and the media artifacts. Loads without torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from omni_portable.contracts.dataplane import COLUMNS, TRAIN, Column, ScoredGroup
from omni_portable.contracts.errors import DataError
from omni_portable.contracts.media import MediaArtifact

Media = list[dict[str, MediaArtifact]]
"""Artifacts by name, one mapping per trajectory."""


def without_media(group: ScoredGroup) -> ScoredGroup:
    """The group as column 'train' holds it."""
    return replace(group, trajectories=[replace(each, artifacts={}) for each in group.trajectories])


def media_of(group: ScoredGroup) -> Media:
    """What column 'media' holds."""
    return [each.artifacts for each in group.trajectories]


def joined(group: ScoredGroup, media: Media) -> ScoredGroup:
    """The whole group from its two columns."""
    pairs = zip(group.trajectories, media, strict=True)
    return replace(group, trajectories=[replace(each, artifacts=artifacts) for each, artifacts in pairs])


def check_columns(columns: Sequence[Column]) -> None:
    """
    Raises:
        DataError: a column that does not exist, or no 'train'.
    """
    if TRAIN not in columns or not set(columns) <= set(COLUMNS):
        raise DataError(
            f"the columns {list(columns)} of groups were asked for",
            remedy=f"ask for '{TRAIN}', alone or with others",
            choices=COLUMNS,
        )
