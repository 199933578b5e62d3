"""Parses the command line, runs one subcommand, and turns errors into messages and exit codes."""

from __future__ import annotations

import argparse
import contextlib
import errno
import io
import os
import signal
import sys
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version

from omni_portable.cli import conformance, data, doctor, placement, plan, quickstart, recipes, report, simulate, train
from omni_portable.cli.stopping import stop_like_ctrl_c, stopped, undisturbed
from omni_portable.contracts.errors import OmniPortableError

OUTPUT_LOST = (errno.EPIPE, errno.ENOSPC, errno.EDQUOT)
"""Standard output goes to a reader that went away, or to a full disk."""

COMMANDS = (train, quickstart, doctor, plan, placement, simulate, report, conformance, data, recipes)
"""Modules with `add_parser(subparsers)`, which sets `handler(arguments) -> exit code`."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code.

    Errors a user can cure are printed without a traceback and give their own exit code (2 for the configuration, 1 for
    the rest); anything else is a bug and keeps its traceback. Ctrl-C gives 130, SIGTERM 143, SIGHUP 129.
    """
    _open_streams()
    arguments = parse(argv)
    with stop_like_ctrl_c() as end:
        try:
            return _run(arguments)
        except KeyboardInterrupt:
            # If the signal came inside exec() of a string, as dataclasses run it at import, `python -m` would end by
            # SIGINT whatever is returned here; CPython forgets it at the next such call.
            with undisturbed():
                exec("")
        except SystemExit as error:
            if error.code != signal.SIGTERM:  # a library took SIGTERM over, and ends with the number of the signal
                raise
            end.by = end.by or signal.SIGTERM
        except Exception:
            if end.by is None:
                raise
            # Else it follows from the signal, which parts of the run may have got as well; log.txt has it.
        with undisturbed(last=argv is None):
            _say(f"\nomni-portable: {end.text}. {_resume_hint(arguments)}".rstrip())
        return end.exit_code


def _run(arguments: argparse.Namespace) -> int:
    """Run the command; errors that are not ours to explain, and those after a signal, are raised."""
    try:
        _check_working_folder()
        code = int(arguments.handler(arguments))
        sys.stdout.flush()
        return code
    except OmniPortableError as error:
        if stopped().by is not None:
            raise
        _say(f"omni-portable: error: {error}")
        if error.stopped_run:
            _say(_resume_hint(arguments))
        return error.exit_code
    except OSError as error:
        # Files of a run are written under guards of their own; what arrives here is the output of the command.
        if stopped().by is not None or error.errno not in OUTPUT_LOST:
            raise
        return _output_lost(error, _resume_hint(arguments))


def _resume_hint(arguments: argparse.Namespace) -> str:
    """How to go on with what the command has begun; empty where there is nothing to continue."""
    return str(getattr(arguments, "resume_hint", ""))


def _say(text: str) -> None:
    """To standard error, which may be gone: a terminal that was closed (SIGHUP), a full disk."""
    with contextlib.suppress(OSError):
        print(text, file=sys.stderr, flush=True)


def _open_streams() -> None:
    """Make standard output and error such that printing to them cannot fail for what is printed.

    Both may be closed, and their encoding may lack a character (it is then escaped).
    """
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115 - for the life of the process
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _check_working_folder() -> None:
    try:
        os.getcwd()
    except FileNotFoundError as error:
        raise OmniPortableError("the folder you are in was removed", remedy="change to one that exists") from error


def _output_lost(error: OSError, resume_hint: str) -> int:
    """Nobody takes our output any more: no fault where the reader has seen enough (`omni-portable recipes | head -1`),
    but training has been stopped by it."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if isinstance(error, BrokenPipeError) and not resume_hint:
        return 0
    why = error.strerror or str(error)
    print(f"omni-portable: error: cannot write to standard output: {why}. {resume_hint}".rstrip(), file=sys.stderr)
    return OmniPortableError.exit_code


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse; overrides may stand anywhere, before or after options (argparse alone wants them in one piece)."""
    parser = build_parser()
    arguments, rest = parser.parse_known_args(_joined(sys.argv[1:] if argv is None else argv))
    if rest:
        strange = [text for text in rest if text.startswith("-") or not hasattr(arguments, "overrides")]
        if strange:
            parser.error(f"unrecognized arguments: {' '.join(strange)}")
        arguments.overrides += rest
    return arguments


def _joined(argv: Sequence[str]) -> list[str]:
    """A command of two words in one piece."""
    words = placement.COMMAND.split()
    return [placement.COMMAND, *argv[2:]] if list(argv[:2]) == words else list(argv)


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
    except UnicodeDecodeError:
        return "(not known: its metadata is damaged)"
