"""Runs checks one after the other and turns whatever happens into results; nothing passes that was not judged."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from omni_portable.conformance.check import Check, Measurement, NotRun, Outcome, Result
from omni_portable.conformance.context import Context
from omni_portable.contracts.errors import OmniPortableError

INTERRUPTED = "interrupted"
NOT_REACHED = "the run ended before this check"

log = logging.getLogger(__name__)


def run_checks(context: Context, checks: Sequence[Check], started: Callable[[Check], None]) -> Iterator[Result]:
    """The result of each check, in order.

    Random generators are seeded before every check, so that a result does not depend on what ran before it.

    Args:
        started: called before each check, for people who wait.

    Raises:
        KeyboardInterrupt: as it arrives; the check that was running has no result then.
    """
    for check in checks:
        started(check)
        yield run_check(context, check)


def run_check(context: Context, check: Check) -> Result:
    """Run one check; only an interruption gets out."""
    began = time.perf_counter()
    try:
        _seed(context)
        result = judge(check, check.run(context))
    except NotRun as reason:
        result = without_result(check, str(reason))
    except OmniPortableError as error:
        log.exception("%s failed", check.id)
        choices = f"; valid choices: {', '.join(error.choices)}" if error.choices else ""
        # What the check advises was not written for this error.
        remedy = error.remedy or ("use one of the valid choices" if error.choices else "")
        result = _failed(check, f"{error.problem}{choices}", remedy)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - a fault of one check is its result and stops no other
        log.exception("%s failed unexpectedly", check.id)
        result = _failed(check, f"unexpected {type(error).__name__}: {error}")
    return replace(result, seconds=time.perf_counter() - began)


def judge(check: Check, outcome: Outcome) -> Result:
    """A result from measurements: one broken threshold fails it, none at all only records it."""
    measurements = tuple(outcome.measurements)
    result = Result(
        id=check.id,
        group=check.group,
        title=check.title,
        status="recorded",
        remedy=check.remedy,
        measurements=measurements,
        detail=outcome.detail,
        facts=dict(outcome.facts),
        series={name: tuple(values) for name, values in outcome.series.items()},
    )
    broken = [measurement for measurement in measurements if measurement.ok is False]
    if broken:
        return replace(result, status="failed", reason="; ".join(map(_broken, broken)))
    names = [measurement.name for measurement in measurements]
    if not names or len(set(names)) < len(names):
        fault = "measured one thing twice" if names else "measured nothing"
        return replace(result, status="failed", reason=f"the check {fault}, which is a fault of the check")
    return replace(result, status="passed" if any(m.ok for m in measurements) else "recorded")


def without_result(check: Check, reason: str) -> Result:
    """The entry of a check that did not run."""
    return Result(check.id, check.group, check.title, "not_run", reason or "no reason was given", check.remedy)


def _failed(check: Check, reason: str, remedy: str = "") -> Result:
    """`remedy` of the error, which knows more, goes before the check's."""
    return Result(check.id, check.group, check.title, "failed", reason, remedy or check.remedy)


def _broken(measurement: Measurement) -> str:
    wanted = f"must be {measurement.relation} {measurement.threshold:g}" if measurement.threshold is not None else ""
    return f"{measurement.name} is {measurement.value:g}, {wanted}".strip()


def _seed(context: Context) -> None:
    if context.config.device.deterministic:
        context.device.determinism.enable(context.seed)
    else:
        context.device.manual_seed(context.seed)
