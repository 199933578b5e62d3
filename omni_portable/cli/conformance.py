"""`omni-portable conformance ...`: does this machine compute what it should?"""

from __future__ import annotations

import argparse
from typing import Any


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser("conformance", help="check arithmetic against references")
    checks = parser.add_subparsers(title="checks", metavar="CHECK", required=True)
    vectors = checks.add_parser(
        "vectors",
        help="compare our arithmetic with a file of reference vectors",
        description="Run every case of a vector file and compare. Exit code 0: all passed, 1: a case failed, 2: a name "
        "that nothing implements, or a bad file.",
    )
    vectors.add_argument("file", metavar="FILE")
    vectors.add_argument("--only", metavar="PREFIXES", help="names to run, by prefix, separated by commas")
    vectors.set_defaults(handler=handle_vectors)


def handle_vectors(arguments: argparse.Namespace) -> int:
    from omni_portable.config.paths import user_path
    from omni_portable.conformance.vectors import main

    only = [f"--only={arguments.only}"] if arguments.only else []
    return main([str(user_path(arguments.file, "FILE")), *only])
