"""`omni-portable conformance ...`: does this machine compute what it should?"""

from __future__ import annotations

import argparse
from typing import Any

from omni_portable.cli import conformance_run
from omni_portable.cli.conformance_run import names, path_text
from omni_portable.contracts.errors import ConfigError


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "conformance",
        help="prove that this device computes what it should",
        description="Check a device, compare reports of several devices, or compare arithmetic with references.",
    )
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    conformance_run.add_parser(actions)
    _add_list(actions)
    _add_compare(actions)
    _add_vectors(actions)


def _add_list(actions: Any) -> None:
    parser = actions.add_parser("list", help="list all checks")
    parser.add_argument("--markdown", action="store_true", help="as docs/conformance.md lists them")
    parser.set_defaults(handler=handle_list)


def _add_compare(actions: Any) -> None:
    parser = actions.add_parser(
        "compare",
        help="compare reports, of several devices or of one over time",
        description="Show statuses and figures of several reports side by side; differences are against the first. "
        "Exit code 0: compared, whatever came of it; 2: a file is missing, damaged, no report, or of another version.",
    )
    parser.add_argument(
        "reports", type=path_text, metavar="REPORT", nargs="+", help="a report.json, or the folder that holds it"
    )
    parser.add_argument("--out", type=path_text, metavar="DIR", help="also write compare.html and compare.json there")
    parser.set_defaults(handler=handle_compare)


def _add_vectors(actions: Any) -> None:
    parser = actions.add_parser(
        "vectors",
        help="compare our arithmetic with a file of reference vectors",
        description="Run every case of a vector file and compare. Exit code 0: all passed, 1: a case failed, 2: a name "
        "that nothing implements, or a bad file.",
    )
    parser.add_argument("file", type=path_text, metavar="FILE")
    parser.add_argument("--only", type=names, metavar="PREFIXES", help="names to run, by prefix, separated by commas")
    parser.set_defaults(handler=handle_vectors)


def handle_list(arguments: argparse.Namespace) -> int:
    from omni_portable.conformance.catalogue import all_checks, markdown_list

    if arguments.markdown:
        print(markdown_list())
        return 0
    for check in all_checks():
        print(f"{check.id:32} {check.suite:6} {check.title}")
    return 0


def handle_compare(arguments: argparse.Namespace) -> int:
    from omni_portable.config.paths import user_path
    from omni_portable.conformance.compare_output import Terminal, print_comparison, to_json
    from omni_portable.conformance.compare_page import to_html
    from omni_portable.conformance.compare_reports import compare_reports
    from omni_portable.conformance.output_folder import output_errors, prepare_folder
    from omni_portable.conformance.report_file import read_report
    from omni_portable.trainer.rundir import write_text

    if len(arguments.reports) < 2:
        raise ConfigError("one report has nothing to be compared with", remedy="name two reports or more")
    paths = [user_path(text, "REPORT") for text in arguments.reports]
    comparison = compare_reports([read_report(path) for path in paths], arguments.reports)
    out = None if arguments.out is None else user_path(arguments.out, "--out")
    if out is not None:
        prepare_folder(out)
        with output_errors():
            write_text(out / "compare.json", to_json(comparison))
            write_text(out / "compare.html", to_html(comparison))
    print_comparison(comparison, Terminal())
    if out is not None:
        print(f"comparison: {out / 'compare.html'}")
    return 0


def handle_vectors(arguments: argparse.Namespace) -> int:
    from omni_portable.config.paths import user_path
    from omni_portable.conformance.vectors import main

    only = [f"--only={','.join(arguments.only)}"] if arguments.only else []
    return main([str(user_path(arguments.file, "FILE")), *only])
