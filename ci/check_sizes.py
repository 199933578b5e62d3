"""Files stay short: none over 800 lines, nine in ten up to 400, half of them up to 150.

    python ci/check_sizes.py [ROOT]

Counts the lines of all python files that are shipped, empty ones (package markers) left out.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from pathlib import Path

SHIPPED = ("omni_portable", "devices", "backends")
MAX_LINES, MAX_P90, MAX_MEDIAN = 800, 400, 150
LISTED = 10
"""Longest files named in the report."""


def line_counts(root: Path) -> dict[str, int]:
    """Path below `root` -> lines, longest first."""
    counts = {}
    for package in SHIPPED:
        for file in sorted((root / package).rglob("*.py")):
            lines = len(file.read_text(encoding="utf-8").splitlines())
            if lines:
                counts[file.relative_to(root).as_posix()] = lines
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def percentile(values: Sequence[int], share: float) -> int:
    """Smallest value that at least `share` of the values do not exceed (nearest rank)."""
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


def problems(counts: dict[str, int]) -> list[str]:
    """Limits that are broken, one sentence each."""
    found = [f"{path} has {lines} lines, more than {MAX_LINES}" for path, lines in counts.items() if lines > MAX_LINES]
    for name, share, limit in (("ninetieth percentile", 0.9, MAX_P90), ("median", 0.5, MAX_MEDIAN)):
        value = percentile(list(counts.values()), share)
        if value > limit:
            found.append(f"the {name} of the files' lengths is {value} lines, more than {limit}")
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Print the report; 1 if a limit is broken, 2 where ROOT ships nothing."""
    arguments = sys.argv[1:] if argv is None else argv
    root = Path(arguments[0]) if arguments else Path(__file__).resolve().parents[1]
    counts = line_counts(root)
    if not counts:
        print(f"{root} holds no python files below {', '.join(SHIPPED)}")
        return 2
    lengths = list(counts.values())
    print(
        f"{len(lengths)} files, {sum(lengths)} lines; median {percentile(lengths, 0.5)}, "
        f"ninetieth percentile {percentile(lengths, 0.9)}, longest {lengths[0]}"
    )
    for path, lines in list(counts.items())[:LISTED]:
        print(f"{lines:5d}  {path}")
    found = problems(counts)
    print("\n".join(found) if found else "all limits kept")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
