"""`omni-portable train RECIPE [key=value ...]`."""

from __future__ import annotations

import argparse
import os
import shlex
from typing import TYPE_CHECKING, Any

from omni_portable.cli.absent import absent_text
from omni_portable.cli.outcome import print_outcome

if TYPE_CHECKING:
    from omni_portable.config.schema import RunConfig

Subparsers = Any  # argparse keeps the class of `add_subparsers()` private

EXAMPLES = """examples:
  omni-portable train sd3/flow_grpo_ocr_tiny
  omni-portable train my_recipe.yaml rollout.n=8 actor.lr=3e-5 trainer.run_dir=runs/second
  omni-portable train my_recipe.yaml --resume          continue the newest checkpoint of its run directory
  omni-portable train my_recipe.yaml --dry-run         check what needs no weights and no hardware, print the plan
"""


def add_parser(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser(
        "train",
        help="train as a recipe says",
        description="Train as a recipe says. Arguments of the form key=value (Hydra's grammar) override its keys.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("recipe", metavar="RECIPE", help="a .yaml file, or a name that `omni-portable recipes` lists")
    add_overrides(parser)
    parser.add_argument("--resume", action="store_true", help="same as trainer.resume=auto")
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="check keys, values and how they fit together, print the resolved configuration, the plan and what is not "
        "on this machine yet, and stop; prompts and weights are not read",
    )
    parser.set_defaults(handler=handle)


def add_overrides(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("overrides", metavar="key=value", nargs="*", help="overrides, e.g. trainer.total_steps=50")


def handle(arguments: argparse.Namespace) -> int:
    from omni_portable.config.loader import load_config, to_yaml
    from omni_portable.config.plan import plan_text
    from omni_portable.models.companions import check_companions
    from omni_portable.models.extents import check_extents

    overrides = [*arguments.overrides, *(["trainer.resume=auto"] if arguments.resume else [])]
    config = load_config(arguments.recipe, overrides)
    if arguments.dry_run:
        check_extents(config)
        check_companions(config)
        print(to_yaml(config))
        print(plan_text(config))
        print(absent_text(config))
        return 0
    arguments.resume_hint = resume_hint(arguments.recipe, arguments.overrides)
    run_and_print(config)
    return 0


def run_and_print(config: RunConfig) -> None:
    """Print the plan, train, print what came of it."""
    from omni_portable.config.plan import plan_text

    if config.trainer.progress != "off":
        print(plan_text(config), flush=True)
    apply_environment(config.device.name)
    from omni_portable.trainer.run import run  # torch from here on

    outcome = run(config)
    print_outcome(outcome.run_dir, outcome.report)


def apply_environment(device_name: str) -> None:
    """Set what the device asks of its processes, before torch loads (libraries read it once); the caller's own values
    win. The local launcher keeps every role in this process, so it is set here."""
    from omni_portable.config.device_choice import choose_device

    for name, value in choose_device(device_name).environment("local").items():
        os.environ.setdefault(name, value)


def resume_hint(recipe: str, overrides: list[str]) -> str:
    """How to continue an interrupted run."""
    kept = [text for text in overrides if not text.startswith("trainer.resume=")]
    command = shlex.join(["omni-portable", "train", recipe, *kept, "trainer.resume=auto"])
    return f"Saved checkpoints are whole; continue from the newest (without one, from the start) with:\n  {command}"
