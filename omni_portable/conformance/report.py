"""A conformance report as data: what was run, on what, and what came of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from omni_portable.conformance.check import Result, Status

SCHEMA = "omni-portable/conformance-report"
SCHEMA_VERSION = 1
STATUSES: tuple[Status, ...] = get_args(Status)
State = Literal["running", "interrupted", "complete"]
Verdict = Literal["passed", "failed", "incomplete", "nothing_passed"]


@dataclass(frozen=True)
class Provenance:
    """How the report came about.

    Args:
        state: 'running' is what remains where the process was killed.
        started / finished: ISO 8601 in UTC; `finished` is empty while it runs.
        seconds: wall time.
        suite / only: as asked for.
        recipe / overrides: what was resolved for the device.
        seed: of everything that was drawn.
        command: repeats it.
        catalogue: number of checks that exist, selected or not.
        version: of omni-portable; `commit` of its source tree, empty where there is none; `modified` when the tree
            differs from the commit.
    """

    state: State
    started: str
    finished: str
    seconds: float
    suite: Literal["quick", "full"]
    only: tuple[str, ...]
    recipe: str
    overrides: tuple[str, ...]
    seed: int
    command: str
    catalogue: int
    version: str
    commit: str
    modified: bool


@dataclass(frozen=True)
class Report:
    """Everything that report.json holds.

    Args:
        environment: device identity, capabilities, attention pairs, determinism, memory, variables, versions.
        results: one per selected check, in the order of the run.
    """

    provenance: Provenance
    environment: Mapping[str, Any]
    results: tuple[Result, ...]

    @property
    def counts(self) -> dict[Status, int]:
        """Status -> number of checks; every status is there."""
        found = Counter(result.status for result in self.results)
        return {status: found[status] for status in STATUSES}

    @property
    def verdict(self) -> Verdict:
        """'passed' needs a complete run without a failure and with something that passed."""
        counts = self.counts
        if counts["failed"]:
            return "failed"
        if self.provenance.state != "complete":
            return "incomplete"
        return "passed" if counts["passed"] else "nothing_passed"

    @property
    def exit_code(self) -> int:
        return 0 if self.verdict == "passed" else 1

    @property
    def device(self) -> str:
        """'NAME' or 'NAME:GENERATION'."""
        identity = self.environment["device"]
        return f"{identity['name']}:{identity['generation']}" if identity["generation"] else str(identity["name"])

    def with_status(self, status: Status) -> list[Result]:
        return [result for result in self.results if result.status == status]


SENTENCES: Mapping[Verdict, str] = {
    "passed": "No check failed.",
    "failed": "At least one check failed: do not rely on this device for this recipe before it is mended.",
    "incomplete": "The run did not reach its end: nothing can be said about the checks that are missing.",
    "nothing_passed": "Nothing was judged and passed, so nothing is proved.",
}
"""What each verdict means, for people."""
