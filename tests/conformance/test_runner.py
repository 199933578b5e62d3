"""What a check's run becomes: nothing passes unjudged, one failure stops no other, an interruption loses nothing."""

from __future__ import annotations

import logging
import math
from pathlib import Path

import pytest
import torch

from omni_portable.conformance.check import Measurement, Outcome
from omni_portable.conformance.context import Context
from omni_portable.conformance.runner import judge, run_check, run_checks
from omni_portable.contracts.errors import DeviceError
from tests.conformance.conformance_doubles import ABSENT, BAD, GOOD, PLAIN, check, context, measured, raising


@pytest.fixture
def here(tmp_path: Path) -> Context:
    return context(tmp_path)


@pytest.mark.parametrize(
    ("measurements", "status"),
    [
        ([GOOD], "passed"),
        ([GOOD, PLAIN], "passed"),
        ([PLAIN], "recorded"),
        ([BAD], "failed"),
        ([GOOD, Measurement("other", 2.0, "", "<=", 1.0)], "failed"),
        ([], "failed"),
        ([GOOD, GOOD], "failed"),
        ([Measurement("error", math.nan, "", "<=", 1.0)], "failed"),
        ([Measurement("error", math.nan, "", "==", math.nan)], "failed"),
        ([Measurement("rate", 0.9, "", ">=", 0.95)], "failed"),
        ([Measurement("relation without a threshold", 1.0, "", "<=", None)], "recorded"),
    ],
)
def test_status_follows_from_measurements(measurements: list[Measurement], status: str) -> None:
    made = check("one", measured(*measurements))
    found = judge(made, made.run(None))  # type: ignore[arg-type]
    assert found.status == status
    assert bool(found.reason) == (status == "failed")


def test_a_failure_names_figure_and_threshold(here: Context) -> None:
    assert run_check(here, check("one", measured(GOOD, Measurement("gap", 2.5, "", "<=", 1.0)))).reason == (
        "gap is 2.5, must be <= 1"
    )


def test_a_refusal_is_a_failure_with_its_own_remedy(here: Context) -> None:
    found = run_check(here, check("one", raising(DeviceError("it broke", remedy="glue it", choices=["a", "b"]))))
    assert (found.status, found.measurements) == ("failed", ())
    assert found.reason == "it broke; valid choices: a, b"
    assert found.remedy == "glue it"
    assert run_check(here, check("one", raising(DeviceError("it broke")))).remedy == "mend one"
    chosen_badly = raising(DeviceError("no such part", choices=["a", "b"]))
    assert run_check(here, check("one", chosen_badly)).remedy == "use one of the valid choices"


@pytest.mark.parametrize("error", [ZeroDivisionError("by zero"), SystemExit(0), torch.OutOfMemoryError("full")])
def test_what_nobody_expected_is_a_failure_that_names_its_type(
    here: Context, error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR, "omni_portable"):
        found = run_check(here, check("one", raising(error)))
    assert found.status == "failed"
    assert f"{type(error).__name__}: {error}" in found.reason
    assert "Traceback" in caplog.text


def test_what_cannot_run_says_why(here: Context) -> None:
    found = run_check(here, check("one", raising(ABSENT)))
    assert (found.status, found.reason) == ("not_run", "no <second> device")


def test_one_failure_stops_no_other(here: Context) -> None:
    checks = [check("a", raising(ValueError("a"))), check("b", raising(ABSENT)), check("c", measured(GOOD))]
    begun: list[str] = []
    results = list(run_checks(here, checks, lambda one: begun.append(one.id)))
    assert [result.status for result in results] == ["failed", "not_run", "passed"]
    assert begun == [result.id for result in results] == ["noise.a", "noise.b", "noise.c"]
    assert all(result.seconds >= 0 and result.remedy.startswith("mend") for result in results)


def test_an_interruption_gets_out_after_the_results_before_it(here: Context) -> None:
    checks = [check("a", measured(GOOD)), check("b", raising(KeyboardInterrupt())), check("c", measured(GOOD))]
    results = run_checks(here, checks, lambda _: None)
    assert next(results).status == "passed"
    with pytest.raises(KeyboardInterrupt):
        next(results)


@pytest.mark.parametrize("deterministic", ["true", "false"])
def test_every_check_draws_the_same_whatever_ran_before(tmp_path: Path, deterministic: str) -> None:
    here = context(tmp_path, None, f"device.deterministic={deterministic}")
    drawn: list[float] = []

    def draw(_: Context) -> Outcome:
        drawn.append(torch.rand(()).item())
        return Outcome([GOOD])

    list(run_checks(here, [check("a", draw), check("b", draw)], lambda _: None))
    assert drawn[0] == drawn[1]
