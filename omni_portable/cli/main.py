"""Parses the command line, runs one subcommand, and turns errors into messages and exit codes."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version

from omni_portable.cli import conformance, doctor, quickstart, recipes, report, train
from omni_portable.contracts.errors import OmniPortableError

INTERRUPTED = 130
"""Exit code after Ctrl-C, as shells have it (128 + SIGINT)."""

COMMANDS = (train, quickstart, doctor, report, conformance, recipes)
"""Modules with `add_parser(subparsers)`, which sets `handler(arguments) -> exit code`."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code.

    Errors a user can cure are printed without a traceback and give their own exit code (2 for the configuration, 1 for
    the rest); anything else is a bug and keeps its traceback.
    """
    arguments = parse(argv)
    try:
        return int(arguments.handler(arguments))
    except OmniPortableError as error:
        print(f"omni-portable: error: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print(f"\nomni-portable: interrupted. {getattr(arguments, 'resume_hint', '')}".rstrip(), file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        # The reader of our output went away (`omni-portable recipes | head -1`): nothing is wrong, nobody listens.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse; overrides may stand anywhere, before or after options (argparse alone wants them in one piece)."""
    parser = build_parser()
    arguments, rest = parser.parse_known_args(argv)
    if rest:
        strange = [text for text in rest if text.startswith("-") or not hasattr(arguments, "overrides")]
        if strange:
            parser.error(f"unrecognized arguments: {' '.join(strange)}")
        arguments.overrides += rest
    return arguments


def build_parser() -> argparse.ArgumentParser:
    """The whole command line."""
    parser = argparse.ArgumentParser(
        prog="omni-portable",
        description="RL post-training for diffusion and omni-modality models: the same recipe on every device.",
        epilog="Start with `omni-portable doctor`, then `omni-portable quickstart`.",
    )
    parser.add_argument("--version", action="version", version=f"omni-portable {installed_version()}")
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for command in COMMANDS:
        command.add_parser(subparsers)
    return parser


def installed_version() -> str:
    try:
        return version("omni-portable")
    except PackageNotFoundError:
        return "(not installed: run from a source tree)"
