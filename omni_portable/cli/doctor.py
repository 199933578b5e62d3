"""`omni-portable doctor`: will this installation work, and if not, what to change."""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from omni_portable.cli.diagnosis.check import Check


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "doctor",
        help="check this installation and say what to change",
        description="Check Python, package versions, plugins, recipes, devices, memory and disk. Versions are compared "
        "before anything is imported. Exit code 0: usable (warnings may remain), 1: something must be changed, 2: no "
        "such device.",
    )
    parser.add_argument("--quick", action="store_true", help="import no torch and ask no driver")
    parser.add_argument(
        "--device",
        metavar="NAME[:GENERATION]",
        help="whose table of packages to compare with (the accelerator that is present, else the host processor)",
    )
    parser.add_argument("--json", action="store_true", help="print findings as JSON")
    parser.set_defaults(handler=handle)


def handle(arguments: argparse.Namespace) -> int:
    if arguments.device is not None:
        from omni_portable.planning.target import parse_target

        parse_target(arguments.device)  # a name that does not exist is said before anything else
    checks = []
    for check in diagnose(arguments.quick, arguments.device):
        checks.append(check)
        if not arguments.json:
            print(check.line(), flush=True)
    failed = [check for check in checks if check.status == "fail"]
    if arguments.json:
        found = [dataclasses.asdict(check) for check in checks]
        print(json.dumps({"ok": not failed, "checks": found}, indent=2))
    else:
        print(f"\n{len(failed)} to change" if failed else "\nready: try `omni-portable quickstart`")
    return 1 if failed else 0


def diagnose(quick: bool, device: str | None = None) -> Iterator[Check]:
    """All findings, the cheap and fundamental ones first.

    When a required package is missing or of the wrong version, or `import torch` would fail, nothing is imported after
    that: what such a set does on import is no finding, and may be a crash.

    Args:
        device: whose table of packages applies; None takes what is present.
    """
    from omni_portable.cli.diagnosis.check import Check
    from omni_portable.cli.diagnosis.packages import package_checks
    from omni_portable.cli.diagnosis.stack import stack_checks

    failed: set[str] = set()
    yield from _once(failed, package_checks(), stack_checks(device))
    if failed:
        yield Check("further checks", "warn", "left out until the packages above are right")
        return
    from omni_portable.cli.diagnosis.machine import machine_checks
    from omni_portable.cli.diagnosis.parts import device_checks, plugin_checks, recipe_checks

    yield from machine_checks(Path("runs"))
    yield from _once(failed, plugin_checks(load=not quick), recipe_checks(), device_checks(ask=not quick))


def _once(failed: set[str], *sources: Iterator[Check]) -> Iterator[Check]:
    """All findings, but one failure for each package or plugin; names of what failed are added to `failed`."""
    for check in (check for checks in sources for check in checks):
        if check.name not in failed:
            yield check
        failed |= {check.name} if check.status == "fail" else set()
