"""`omni-portable plan RECIPE --device NAME[:GENERATION]`: what a run would be there, without the device."""

from __future__ import annotations

import argparse
from typing import Any

from omni_portable.cli.device_option import refuse_device_overrides
from omni_portable.cli.train import add_overrides

EXAMPLES = """examples:
  omni-portable plan sd3/flow_grpo_ocr_tiny --device cpu
  omni-portable plan my_recipe.yaml --device ascend:a3 --devices 16 rollout.sleep_level=1
  omni-portable plan my_recipe.yaml --device auto --json
"""


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "plan",
        help="say what a recipe needs on a device that need not be here",
        description="Resolve a recipe for any device, without hardware: attention kernels, dtype, collectives, memory, "
        "packages. Exit code 0: nothing known forbids it (the first line says what is not known); 1: it cannot run "
        "there, and why; 2: no such recipe, key or device.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("recipe", metavar="RECIPE", help="a .yaml file, or a name that `omni-portable recipes` lists")
    add_overrides(parser)
    parser.add_argument(
        "--device", required=True, metavar="NAME[:GENERATION]", help="where to run, or 'auto' for what is present here"
    )
    parser.add_argument(
        "--devices",
        type=positive,
        metavar="N",
        help="how many of them (1; with a launcher of several processes what it needs)",
    )
    parser.add_argument(
        "--memory-gib", type=gibibytes, metavar="GIB", help="memory of one, where the table's is not it"
    )
    parser.add_argument("--json", action="store_true", help="print the plan as JSON (see docs/planning.md)")
    parser.set_defaults(handler=handle)


def handle(arguments: argparse.Namespace) -> int:
    from omni_portable.planning.resolve import make_plan

    refuse_device_overrides(arguments.overrides)
    plan = make_plan(
        arguments.recipe,
        arguments.device,
        devices=arguments.devices,
        overrides=arguments.overrides,
        memory_bytes=arguments.memory_gib,
    )
    if arguments.json:
        import dataclasses
        import json

        print(json.dumps(dataclasses.asdict(plan), indent=2))
    else:
        from omni_portable.planning.text import plan_as_text

        print(plan_as_text(plan))
    return 1 if plan.verdict == "cannot_run" else 0


def positive(text: str) -> int:
    """A whole number above 0, for argparse."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number above 0")
    return int(text)


def gibibytes(text: str) -> int:
    """Bytes from a number of GiB above 0 and below 2**20, for argparse."""
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 2**-30 <= number < 2**20:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of GiB above 0 and below {2**20}")
    return int(number * 2**30)
