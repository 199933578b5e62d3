"""All checks in the order in which they run, and which of them a run selects."""

from __future__ import annotations

import importlib
import textwrap
from collections.abc import Sequence
from itertools import groupby
from typing import get_args

from omni_portable.config.convert import suggest
from omni_portable.conformance.check import Check, Group, Suite
from omni_portable.contracts.errors import ConfigError

GROUPS: tuple[Group, ...] = get_args(Group)
"""Cheap and fundamental ones first: what a group relies on is checked before it."""


def all_checks() -> tuple[Check, ...]:
    """Every check, group by group.

    Raises:
        ValueError: an id that is given twice, or that does not start with its group.
    """
    modules = [importlib.import_module(f"{__package__}.checks.{group.replace('-', '_')}") for group in GROUPS]
    checks: tuple[Check, ...] = tuple(check for module in modules for check in module.CHECKS)
    seen: set[str] = set()
    for check in checks:
        if check.id in seen:
            raise ValueError(f"two checks have the id '{check.id}'")
        if check.id.partition(".")[0] != check.group:
            raise ValueError(f"the id '{check.id}' does not start with its group '{check.group}'")
        seen.add(check.id)
    return checks


def select(suite: Suite, only: Sequence[str] = ()) -> tuple[Check, ...]:
    """The checks of a suite.

    Args:
        only: ids, which are taken whatever the suite, and groups, of which the suite's checks are taken.

    Raises:
        ConfigError: a name that is neither, or nothing to run.
    """
    checks = all_checks()
    names = [*GROUPS, *(check.id for check in checks)]
    for name in only:
        if name not in names:
            raise ConfigError(
                f"--only={name}: no check and no group of that name",
                remedy=suggest(name, names) or "`omni-portable conformance list` shows all checks",
                choices=GROUPS,
            )
    of_suite = [check for check in checks if suite == "full" or check.suite == "quick"]
    if not only:
        return tuple(of_suite)
    chosen = tuple(check for check in checks if check.id in only or (check in of_suite and check.group in only))
    if not chosen:
        raise ConfigError(
            f"--only={','.join(only)} selects no check of the {suite} suite", remedy="add --suite full, or name an id"
        )
    return chosen


def markdown_list(width: int = 118) -> str:
    """All checks as docs/conformance.md lists them: a heading per group, an entry per check."""
    lines: list[str] = []
    for group, checks in groupby(all_checks(), key=lambda check: check.group):
        lines += ["", f"### {group}", ""]
        for check in checks:
            entry = f"- `{check.id}` ({check.suite}): {check.title}"
            lines += textwrap.wrap(entry, width, subsequent_indent="  ", break_on_hyphens=False)
    return "\n".join(lines).strip()
