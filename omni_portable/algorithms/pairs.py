"""Preference pairs from scored groups (online DPO)."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence

from omni_portable.algorithms.advantages import group_members
from omni_portable.contracts.errors import NonFiniteError


def best_worst_pairs(groups: Sequence[Hashable], scores: Sequence[float]) -> list[int]:
    """Positions best, worst, best, worst, ... : one pair per group, groups in order of first appearance.

    Groups of one are skipped. Ties resolve to the first of the best and the last of the worst, as a stable descending
    sort does; a group of equal scores therefore still makes a pair.

    Raises:
        NonFiniteError: a score that cannot be ordered.
    """
    if len(groups) != len(scores):
        raise ValueError(f"{len(groups)} group ids for {len(scores)} scores")
    bad = [groups[i] for i, score in enumerate(scores) if not math.isfinite(score)]
    if bad:
        raise NonFiniteError(f"{len(bad)} score(s) are NaN or infinite, in groups {bad[:8]}")
    pairs: list[int] = []
    for members in group_members(groups).values():
        if len(members) > 1:
            ranked = sorted(members, key=lambda index: -scores[index])
            pairs += [ranked[0], ranked[-1]]
    return pairs


def preferred_pairs(groups: Sequence[Hashable], scores: Sequence[float], keep_ties: bool) -> list[int]:
    """:func:`best_worst_pairs` without those that prefer nothing, unless ties are kept."""
    pairs = best_worst_pairs(groups, scores)
    return [
        index
        for best, worst in zip(pairs[0::2], pairs[1::2], strict=True)
        if keep_ties or scores[best] > scores[worst]
        for index in (best, worst)
    ]
