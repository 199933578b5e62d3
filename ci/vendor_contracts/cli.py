"""The command behind `ci/check_vendor_contracts.py`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from ci.vendor_contracts import offline, online
from ci.vendor_contracts.fetch import FetchError

ROOT = Path(__file__).resolve().parents[2]


def main(argv: Sequence[str] | None = None, root: Path = ROOT) -> int:
    """Print what is wrong, and what was not checked; 1 if anything is wrong, 3 where the index cannot be reached."""
    parser = argparse.ArgumentParser(description="Hold our uses of vendors' packages against the real ones.")
    parser.add_argument("--download", action="store_true", help="read the pinned packages themselves, from the index")
    parser.add_argument("--update", action="store_true", help="write manifests (with --download also signatures)")
    options = parser.parse_args(argv)
    if options.update:
        print("\n".join(offline.update(root)))
    try:
        problems = online.problems(root, update=options.update) if options.download else []
    except FetchError as error:
        print(error, file=sys.stderr)
        return 3
    report = offline.report(root)
    problems += report.problems
    print("\n".join([*(f"not checked: {line}" for line in report.unchecked), *(f"FAILS {line}" for line in problems)]))
    print(
        f"{report.agreed} of {report.total} uses of vendors' names agree, {len(report.unchecked)} were not checked, "
        f"{len(problems)} problems"
    )
    return 1 if problems else 0
