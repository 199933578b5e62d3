"""One conformance run from the chosen device to the three files of its output folder."""

from __future__ import annotations

import datetime
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch

from omni_portable.config.schema import RunConfig
from omni_portable.conformance.check import Check, Result, Suite
from omni_portable.conformance.context import Context
from omni_portable.conformance.environment import describe, source_commit
from omni_portable.conformance.junit import to_junit
from omni_portable.conformance.output_folder import (
    HTML_NAME,
    JUNIT_NAME,
    LOG_NAME,
    output_errors,
    owned_folder,
    scratch_folder,
)
from omni_portable.conformance.report import Provenance, Report, State
from omni_portable.conformance.report_file import FILE_NAME, to_json
from omni_portable.conformance.report_page import to_html
from omni_portable.conformance.runner import INTERRUPTED, NOT_REACHED, run_checks, without_result
from omni_portable.contracts.device import Device
from omni_portable.trainer.environment import package_versions
from omni_portable.trainer.rundir import write_text
from omni_portable.trainer.runlog import log_to

log = logging.getLogger(__name__)


class Listener(Protocol):
    """Who watches a run."""

    def started(self, check: Check) -> None: ...

    def finished(self, result: Result) -> None: ...


@dataclass(frozen=True)
class Asked:
    """What the user asked for.

    Args:
        config: the recipe with `device.name` set to the device under test.
        checks: selected; `catalogue` is how many there are.
        command: repeats the run.
    """

    config: RunConfig
    checks: Sequence[Check]
    catalogue: int
    suite: Suite
    only: tuple[str, ...]
    overrides: tuple[str, ...]
    seed: int
    command: str


def run_session(asked: Asked, device: Device, folder: Path, listener: Listener) -> Report:
    """Run the checks and write report.json, report.html, junit.xml and log.txt into `folder`, in place of earlier ones.

    report.json is written before the first check and after every one, so that a process that dies leaves what it knew.
    After Ctrl-C the rest is 'not run: interrupted', and the files are written as always.

    Raises:
        ConfigError: another run owns the folder, its files cannot be replaced, or there is no room for temporary files.
        RunDirectoryError: the folder cannot be written any more.
    """
    if asked.config.device.threads:
        torch.set_num_threads(asked.config.device.threads)
    with output_errors(), owned_folder(folder):
        with scratch_folder() as work, log_to(folder / LOG_NAME):
            report = _run(asked, Context(device, asked.config, work, asked.seed), folder, listener)
        write_files(report, folder)
    return report


def write_files(report: Report, folder: Path) -> None:
    """The three files, each whole or not at all."""
    write_text(folder / FILE_NAME, to_json(report))
    write_text(folder / HTML_NAME, to_html(report))
    write_text(folder / JUNIT_NAME, to_junit(report))


def _run(asked: Asked, context: Context, folder: Path, listener: Listener) -> Report:
    began, started = time.perf_counter(), _now()
    commit, modified = source_commit()
    log.info("%s", asked.command)
    determinism = context.device.determinism.enable(asked.seed) if asked.config.device.deterministic else None
    environment = describe(context, determinism)
    results: list[Result] = []

    def report(state: State, reason: str) -> Report:
        rest = [without_result(check, reason) for check in asked.checks[len(results) :]]
        provenance = Provenance(
            state=state,
            started=started,
            finished="" if state == "running" else _now(),
            seconds=time.perf_counter() - began,
            suite=asked.suite,
            only=asked.only,
            recipe=asked.config.recipe,
            overrides=asked.overrides,
            seed=asked.seed,
            command=asked.command,
            catalogue=asked.catalogue,
            version=package_versions()["omni-portable"],
            commit=commit,
            modified=modified,
        )
        return Report(provenance, environment, (*results, *rest))

    try:
        write_text(folder / FILE_NAME, to_json(report("running", NOT_REACHED)))
        for result in run_checks(context, asked.checks, listener.started):
            results.append(result)
            log.info("%s: %s (%.2f s) %s", result.id, result.status, result.seconds, result.reason)
            listener.finished(result)
            write_text(folder / FILE_NAME, to_json(report("running", NOT_REACHED)))
    except KeyboardInterrupt:
        log.info("interrupted")
        return report("interrupted", INTERRUPTED)
    return report("complete", NOT_REACHED)


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
