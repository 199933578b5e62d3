"""`omni-portable conformance run`: check the device, write the report."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from typing import TYPE_CHECKING, Any, TextIO

from omni_portable.cli.device_option import refuse_device_overrides
from omni_portable.cli.stopping import stopped
from omni_portable.cli.train import add_overrides

if TYPE_CHECKING:
    from omni_portable.conformance.check import Check, Result
    from omni_portable.conformance.report import Report

DEFAULT_RECIPE = "sd3/flow_grpo_ocr_tiny"
EPILOG = """exit codes:
  0    no check failed, and at least one passed
  1    a check failed, or nothing passed
  2    the command, the recipe, the device's name or a selected check is wrong; nothing was run
  130  interrupted (143: by SIGTERM, 129: by SIGHUP); the report says what was not run

examples:
  omni-portable conformance run --out build/conformance
  omni-portable conformance run --device cpu --suite full --out build/conformance
  omni-portable conformance run --only attention,memory.stats --out build/part device.dtype=bfloat16
"""


def add_parser(actions: Any) -> None:
    parser = actions.add_parser(
        "run",
        help="check a device with a recipe and write the report",
        description="Run the checks of a suite on a device. Writes report.json, report.html, junit.xml and log.txt.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--device", default="auto", metavar="NAME", help="'NAME', 'NAME:GENERATION', or 'auto'")
    parser.add_argument("--suite", choices=("quick", "full"), default="quick", help="quick (default): about a minute")
    parser.add_argument("--recipe", default=DEFAULT_RECIPE, metavar="R", help=f"default: {DEFAULT_RECIPE}")
    parser.add_argument("--only", type=names, default=(), metavar="IDS", help="ids or groups, separated by commas")
    parser.add_argument("--out", type=path_text, required=True, metavar="DIR", help="folder of the report")
    add_overrides(parser)
    parser.set_defaults(handler=handle)


def handle(arguments: argparse.Namespace) -> int:
    from omni_portable.config.loader import load_config
    from omni_portable.config.paths import user_path
    from omni_portable.planning.target import choose_target

    refuse_device_overrides(arguments.overrides)
    device = choose_target(arguments.device)
    for name, value in device.environment("local").items():
        os.environ.setdefault(name, value)
    full_name = f"{device.name}:{device.generation}" if device.generation else device.name
    config = load_config(arguments.recipe, [*arguments.overrides, f"device.name={full_name}"])

    from omni_portable.conformance.catalogue import all_checks, select  # torch from here on
    from omni_portable.conformance.output_folder import prepare_folder
    from omni_portable.conformance.session import Asked, run_session

    asked = Asked(
        config=config,
        checks=select(arguments.suite, arguments.only),
        catalogue=len(all_checks()),
        suite=arguments.suite,
        only=arguments.only,
        overrides=tuple(arguments.overrides),
        seed=config.trainer.seed,
        command=_command(arguments, full_name),
    )
    out = user_path(arguments.out, "--out")
    prepare_folder(out)
    # A run that its own output stops has proved nothing: with a hint it does not end with 0.
    arguments.resume_hint = f"The run stopped. What it knew is in {out / 'report.json'}, if anything."
    print(f"{full_name}: {device.identity().model}")
    print(f"{len(asked.checks)} of {asked.catalogue} checks, {asked.suite} suite, recipe {config.recipe}\n", flush=True)
    report = run_session(asked, device, out, Lines(sys.stdout, sys.stdout.isatty()))
    _print_end(report, str(out))
    return stopped().exit_code if report.provenance.state == "interrupted" else report.exit_code


def names(text: str) -> tuple[str, ...]:
    """At least one name, separated by commas, for argparse."""
    found = tuple(name.strip() for name in text.split(",") if name.strip())
    if not found:
        raise argparse.ArgumentTypeError(f"{text!r} names nothing")
    return found


def path_text(text: str) -> str:
    """A path that names something, for argparse: an empty one would be the working folder."""
    if not text:
        raise argparse.ArgumentTypeError("an empty path names nothing")
    return text


def _command(arguments: argparse.Namespace, device: str) -> str:
    """What repeats the run, with the device that 'auto' meant; bytes of a path that are no text are escaped."""
    parts = ["omni-portable", "conformance", "run", "--device", device, "--suite", arguments.suite]
    parts += ["--recipe", arguments.recipe, *(["--only", ",".join(arguments.only)] if arguments.only else [])]
    command = shlex.join([*parts, "--out", arguments.out, *arguments.overrides])
    return command.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


class Lines:
    """A line per check as it ends; on a terminal also what is running."""

    def __init__(self, stream: TextIO, live: bool) -> None:
        self._stream, self._live = stream, live

    def started(self, check: Check) -> None:
        if self._live:
            print(f"...       {check.id}", end="\r", file=self._stream, flush=True)

    def finished(self, result: Result) -> None:
        from omni_portable.conformance.wording import STATUS_WORDS, measurement_text

        word = STATUS_WORDS[result.status]
        judged = [measurement for measurement in result.measurements if measurement.ok is not None]
        figure = measurement_text((judged or list(result.measurements))[0]) if result.measurements else ""
        line = f"{word.upper() if word == 'failed' else word:9} {result.id:32} {result.seconds:7.2f} s  {figure}"
        print(line.rstrip(), file=self._stream)
        if result.reason:
            print("\n".join(f"          {part}" for part in result.reason.splitlines()), file=self._stream)
        if result.status == "failed":
            print(f"          to fix it: {result.remedy}", file=self._stream)
        self._stream.flush()


def _print_end(report: Report, out: str) -> None:
    from omni_portable.conformance.report import SENTENCES
    from omni_portable.conformance.wording import STATUS_WORDS

    counts = ", ".join(f"{count} {STATUS_WORDS[status]}" for status, count in report.counts.items())
    print(f"\n{counts} in {report.provenance.seconds:.0f} s. {SENTENCES[report.verdict]}")
    print(f"report: {out}/report.html (also report.json, junit.xml, log.txt)")
