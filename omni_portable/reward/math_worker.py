"""A process of its own that compares mathematical answers with math-verify: what takes too long there can be ended.

Reads one JSON object {wanted, given} per line and writes one {equal} for each. Ends with its input.
"""

from __future__ import annotations

import json
import logging
import sys


def equal(wanted: str, given: str) -> bool:
    """Whether both, read as LaTeX, have the same value."""
    from math_verify import LatexExtractionConfig, parse, verify

    left, right = (
        parse(f"\\boxed{{{text}}}", extraction_config=[LatexExtractionConfig()], parsing_timeout=None)
        for text in (wanted, given)
    )
    return bool(left and right and verify(left, right, timeout_seconds=None))


def main() -> None:
    """Serve until standard input closes."""
    logging.disable(logging.CRITICAL)
    equal("1", "1")  # loads everything before the first question's time runs
    print("ready", flush=True)
    for line in sys.stdin:
        question = json.loads(line)
        print(json.dumps({"equal": equal(question["wanted"], question["given"])}), flush=True)


if __name__ == "__main__":
    main()
