"""``omni-portable conformance vectors FILE [--only PREFIXES]``: our arithmetic against published reference vectors.

Loads without torch; the implementations are imported when cases run.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from omni_portable.conformance.compare import Comparison, Tolerance, compare
from omni_portable.conformance.vector_file import VectorCase, VectorFileError, read_vectors
from omni_portable.contracts.errors import OmniPortableError

TOLERANCE = Tolerance(relative=1e-5, absolute=1e-6)


@dataclass(frozen=True)
class CaseResult:
    """One case that ran: the share of the tolerance used (`worst`), and what is wrong (`problem`, empty if nothing)."""

    index: int
    name: str
    worst: float
    problem: str

    @property
    def passed(self) -> bool:
        return not self.problem


@dataclass(frozen=True)
class NameSummary:
    """All cases of one name."""

    name: str
    passed: int
    failed: int
    worst: float


@dataclass(frozen=True)
class VectorReport:
    """Results of a file.

    Args:
        results: cases that ran, in file order.
        unknown: selected names that nothing implements.
    """

    results: tuple[CaseResult, ...]
    unknown: tuple[str, ...]

    @property
    def failures(self) -> tuple[CaseResult, ...]:
        return tuple(result for result in self.results if not result.passed)

    @property
    def exit_code(self) -> int:
        """0: everything passed; 1: a case failed; 2: a selected name is unknown."""
        if self.unknown:
            return 2
        return 1 if self.failures else 0

    def by_name(self) -> tuple[NameSummary, ...]:
        """Summaries in order of first appearance."""
        names = dict.fromkeys(result.name for result in self.results)
        return tuple(self._summary(name) for name in names)

    def _summary(self, name: str) -> NameSummary:
        own = [result for result in self.results if result.name == name]
        passed = sum(result.passed for result in own)
        return NameSummary(name, passed, len(own) - passed, max(result.worst for result in own))

    def table(self) -> str:
        """What a person wants to read: a line per name, then every failure and unknown name."""
        rows = [(s.name, str(s.passed), str(s.failed), f"{s.worst:.3g}") for s in self.by_name()]
        rows.insert(0, ("name", "passed", "failed", "worst error / tolerance"))
        width = max(len(row[0]) for row in rows)
        lines = [f"{row[0]:<{width}}  {row[1]:>6}  {row[2]:>6}  {row[3]:>23}" for row in rows]
        lines += [f"FAILED  case {f.index} ({f.name}): {f.problem}" for f in self.failures]
        lines += [f"UNKNOWN {name}: nothing implements this name" for name in self.unknown]
        passed = len(self.results) - len(self.failures)
        lines.append(f"{passed} passed, {len(self.failures)} failed, {len(self.unknown)} unknown name(s)")
        return "\n".join(lines)


def run_vectors(path: Path, only: Sequence[str] = ()) -> VectorReport:
    """Run the cases of a file whose names start with one of the prefixes `only` (empty: all).

    Raises:
        VectorFileError: the file is unreadable or corrupt, or no case is selected.
    """
    selected = [case for case in read_vectors(path) if not only or case.name.startswith(tuple(only))]
    if not selected:
        raise VectorFileError(f"no case of {path} has a name that starts with {', '.join(only)}")
    known = importlib.import_module("omni_portable.conformance.vector_cases").CASES
    results = tuple(_run(case) for case in selected if case.name in known)
    unknown = tuple(dict.fromkeys(case.name for case in selected if case.name not in known))
    return VectorReport(results, unknown)


def _run(case: VectorCase) -> CaseResult:
    run_case = importlib.import_module("omni_portable.conformance.vector_cases").run_case
    try:
        comparison = compare(run_case(case), case.expected, TOLERANCE)
    except VectorFileError:
        raise
    except (OmniPortableError, ValueError, TypeError, IndexError, RuntimeError) as error:
        # Inputs our functions refuse: the case fails with the reason, the others still run.
        comparison = Comparison(float("inf"), f"{type(error).__name__}: {error}", 0)
    problem = comparison.problem or ("" if comparison.values else "nothing is expected of it")
    return CaseResult(case.index, case.name, comparison.worst, problem)


def main(argv: Sequence[str] | None = None) -> int:
    """Entry of the command: prints the table; exit code 0, 1 (a failure) or 2 (an unknown name or a bad file)."""
    parser = argparse.ArgumentParser(
        prog="omni-portable conformance vectors",
        description="Compare samplers, advantages and losses with reference vectors (1e-5 relative + 1e-6 absolute).",
        epilog="exit code: 0 all passed, 1 a case failed, 2 an unknown name or an unreadable file",
    )
    parser.add_argument("file", type=Path, metavar="FILE", help="reference vectors in JSON")
    parser.add_argument("--only", default="", metavar="PREFIXES", help="comma-separated prefixes of names to run")
    arguments = parser.parse_args(argv)
    only = [prefix.strip() for prefix in arguments.only.split(",") if prefix.strip()]
    try:
        report = run_vectors(arguments.file, only)
    except OmniPortableError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    print(report.table())
    return report.exit_code
