"""`omni-portable report RUN_DIR`."""

from __future__ import annotations

import argparse
from typing import Any


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "report",
        help="write the HTML report of a run, finished or not",
        description="Write one self-contained HTML file about a run: result, pictures, curves, consistency, timings.",
    )
    parser.add_argument("run_dir", metavar="RUN_DIR")
    parser.add_argument("--out", metavar="FILE", help="where to write (RUN_DIR/report.html)")
    parser.set_defaults(handler=handle)


def handle(arguments: argparse.Namespace) -> int:
    from omni_portable.config.paths import user_path
    from omni_portable.trainer.report import write_report

    out = None if arguments.out is None else user_path(arguments.out, "--out")
    print(write_report(user_path(arguments.run_dir, "RUN_DIR"), out))
    return 0
