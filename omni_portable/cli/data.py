"""`omni-portable data ...`: convert published datasets, and check converted files."""

from __future__ import annotations

import argparse
from typing import Any


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser("data", help="convert and check datasets", description="Convert and check datasets.")
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    convert = actions.add_parser(
        "convert",
        help="make a prompt file of a published dataset",
        description="Read the rows of one or more files, check each and its media, and write one prompt file.",
        epilog="`omni-portable data kinds` describes the kinds.",
    )
    convert.add_argument("kind", metavar="KIND")
    convert.add_argument("sources", metavar="IN", nargs="+", help=".txt, .jsonl, .json or .parquet files")
    convert.add_argument(
        "out", metavar="OUT", help="a new .parquet file (media inside) or .jsonl file (paths of media)"
    )
    convert.add_argument("--skip-bad", action="store_true", help="leave out rows that break the schema, and count them")
    convert.add_argument("--keep-paths", action="store_true", help="write paths of media, not their bytes")
    convert.add_argument("--media-root", metavar="DIR", help="a further folder where paths of media may begin")
    convert.add_argument("--overwrite", action="store_true", help="replace OUT where it exists (never an IN)")
    convert.set_defaults(handler=handle_convert)
    check = actions.add_parser("check", help="check every row of a prompt file, media included")
    check.add_argument("file", metavar="FILE")
    check.add_argument("--kind", metavar="KIND", required=True)
    check.set_defaults(handler=handle_check)
    kinds = actions.add_parser("kinds", help="describe the kinds of datasets")
    kinds.set_defaults(handler=handle_kinds)


def handle_convert(arguments: argparse.Namespace) -> int:
    import yaml

    from omni_portable.config.paths import user_path
    from omni_portable.data.converting import convert_files
    from omni_portable.data.kinds import find_kind

    kind, out = find_kind(arguments.kind), user_path(arguments.out, "OUT")
    result = convert_files(
        kind,
        [user_path(source, "IN") for source in arguments.sources],
        out,
        skip_bad=arguments.skip_bad,
        keep_paths=arguments.keep_paths,
        media_root=user_path(arguments.media_root, "--media-root") if arguments.media_root else None,
        overwrite=arguments.overwrite,
    )
    print(f"wrote {out}: {_rows(result.written)}")
    if result.left_out:
        print("left out: " + ", ".join(f"{count} {reason}" for reason, count in sorted(result.left_out.items())))
    if result.first_problem:
        print(f"the first broken row: {result.first_problem}")
    keys = yaml.safe_dump(kind.keys(str(out), result.filled, result.written), sort_keys=False, allow_unicode=True)
    print(f"keys of a recipe that trains on it (data.validation takes a second file):\n\n{keys}", end="")
    return 0


def handle_check(arguments: argparse.Namespace) -> int:
    from omni_portable.config.paths import user_path
    from omni_portable.data.checking import check_file
    from omni_portable.data.kinds import find_kind

    kind, path = find_kind(arguments.kind), user_path(arguments.file, "FILE")
    print(f"{path}: {_rows(check_file(path, kind))} of kind '{kind.name}', all in order")
    return 0


def handle_kinds(arguments: argparse.Namespace) -> int:
    from omni_portable.data.kinds import KINDS

    for kind in KINDS.values():
        columns = ", ".join(f"{c.name} ({c.kind}{'' if c.required else ', may be empty'})" for c in kind.columns)
        print(f"{kind.name}\n  {kind.summary}\n  takes {kind.takes}\n  makes {columns}")
    return 0


def _rows(count: int) -> str:
    return f"{count} row{'' if count == 1 else 's'}"
