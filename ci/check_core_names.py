"""No module of the core names an accelerator or its libraries.

    python ci/check_core_names.py [ROOT]

A word counts wherever it stands between anything but letters and digits, so `torch_npu` and `is_cuda` count too. The
whitelist (ci/core_names_whitelist.txt, lines `PATH: REASON`) must have no entry without a reason or without a hit.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path

WORDS = ("cuda", "hip", "rocm", "npu", "hccl", "nccl")
PATTERN = re.compile(rf"(?<![a-z0-9])({'|'.join(WORDS)})(?![a-z0-9])", re.IGNORECASE)
CORE = "omni_portable"
WHITELIST = "ci/core_names_whitelist.txt"


def find_hits(root: Path) -> dict[str, list[str]]:
    """Path below `root` -> 'line N: WORD' for every .py file of the core that names an accelerator."""
    hits: dict[str, list[str]] = {}
    for file in sorted((root / CORE).rglob("*.py")):
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
            for match in PATTERN.finditer(line):
                hits.setdefault(file.relative_to(root).as_posix(), []).append(f"line {number}: {match[1]}")
    return hits


def read_whitelist(root: Path) -> dict[str, str]:
    """Path -> reason; comments (#) and empty lines are skipped, a missing file is an empty list."""
    file = root / WHITELIST
    lines = file.read_text(encoding="utf-8").splitlines() if file.is_file() else []
    entries = (line.partition(":") for line in lines if line.strip() and not line.startswith("#"))
    return {path.strip(): reason.strip() for path, _, reason in entries}


def problems(root: Path) -> list[str]:
    """What is wrong, one sentence each; empty where nothing is."""
    hits, whitelist = find_hits(root), read_whitelist(root)
    found = [f"{path}, {hit}" for path, path_hits in hits.items() if path not in whitelist for hit in path_hits]
    for path, reason in whitelist.items():
        if not reason:
            found.append(f"{WHITELIST}: '{path}' has no reason")
        if path not in hits:
            found.append(f"{WHITELIST}: '{path}' is stale: the file is gone or names no accelerator any more")
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Print the problems; 1 if there are any, 2 where ROOT holds no core."""
    arguments = sys.argv[1:] if argv is None else argv
    root = Path(arguments[0]) if arguments else Path(__file__).resolve().parents[1]
    if not (root / CORE).is_dir():
        print(f"{root} has no folder '{CORE}'")
        return 2
    found = problems(root)
    print("\n".join(found) if found else f"no accelerator is named in {CORE}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
