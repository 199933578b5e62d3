"""`omni-portable plan placement RUN_DIR --devices N`: which execution mode and split of devices pays."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from omni_portable.planning.placement.profile import Profile

COMMAND = "plan placement"
"""Two words on the command line; `cli.main` joins them before it parses."""

EXAMPLES = """examples:
  omni-portable plan placement runs/sd3/my_recipe --devices 8
  omni-portable plan placement --profile measured.json --devices 4 --tokens 512 1024 2048
  omni-portable plan placement runs/sd3/my_recipe --devices 8 --save-profile measured.json --json
"""


def add_parser(subparsers: Any) -> None:
    from omni_portable.cli.plan import positive

    parser = subparsers.add_parser(
        COMMAND,
        help="predict seconds per prompt of every execution mode and split",
        description="From the measured stage times of a run, or a profile, predict seconds per prompt of every "
        "execution mode and split of devices, and recommend one. See docs/placement.md.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_profile_arguments(parser)
    parser.add_argument("--devices", required=True, type=positive, metavar="N", help="devices altogether")
    parser.add_argument(
        "--tokens", type=amount, nargs="+", default=[], metavar="L", help="mean response lengths (those measured)"
    )
    parser.add_argument("--prompts", type=positive, metavar="P", help="prompts per step (as measured, by mode)")
    parser.add_argument(
        "--tensor-parallel", type=positive, nargs="+", default=[], metavar="T", help="devices per rollout replica"
    )
    parser.add_argument("--max-staleness", type=whole, default=1, metavar="V", help="policy versions (1)")
    parser.add_argument("--sync-rounds", type=positive, default=1, metavar="K", help="steps between weight syncs (1)")
    parser.add_argument("--save-profile", metavar="FILE", help="also write the profile, to edit or to keep")
    parser.add_argument("--json", action="store_true", help="print everything as JSON")
    parser.set_defaults(handler=handle)


def add_profile_arguments(parser: argparse.ArgumentParser) -> None:
    """RUN_DIR or --profile, and what the run used."""
    from omni_portable.cli.plan import positive

    parser.add_argument("run_dir", nargs="?", metavar="RUN_DIR", help="a run whose timings are taken")
    parser.add_argument("--profile", metavar="FILE", help="a profile instead of a run")
    parser.add_argument("--measured-devices", type=positive, metavar="N", help="devices that the run used")
    parser.add_argument(
        "--measured-rollout-devices", type=positive, metavar="N", help="those of rollout alone (asynchronous modes)"
    )
    parser.add_argument(
        "--measured-tensor-parallel", type=positive, metavar="T", help="devices per replica in the run (1)"
    )


def handle(arguments: argparse.Namespace) -> int:
    from omni_portable.planning.placement.advise import Request, advise
    from omni_portable.planning.placement.text import advice_as_data, advice_as_text

    check_sync_rounds(arguments)
    profile = chosen_profile(arguments)
    request = Request(
        devices=arguments.devices,
        tokens=tuple(arguments.tokens),
        prompts=arguments.prompts,
        tensor_parallel=tuple(arguments.tensor_parallel),
        max_staleness=arguments.max_staleness,
        sync_rounds=arguments.sync_rounds,
    )
    advice = advise(profile, request)
    if arguments.save_profile:
        _save(profile, arguments.save_profile)
    if arguments.json:
        import json

        print(json.dumps(advice_as_data(advice), indent=2))
    else:
        print(advice_as_text(advice))
    return 0


def chosen_profile(arguments: argparse.Namespace) -> Profile:
    """The profile that RUN_DIR or --profile names.

    Raises:
        ConfigError: neither is given, or both.
    """
    from omni_portable.config.paths import user_path
    from omni_portable.contracts.errors import ConfigError
    from omni_portable.planning.placement.measured import profile_of_run
    from omni_portable.planning.placement.profile import load_profile

    refuse_measured(arguments)
    if bool(arguments.run_dir) == bool(arguments.profile):
        raise ConfigError("measured times come from RUN_DIR or from --profile", remedy="give one of the two")
    if arguments.profile:
        return load_profile(user_path(arguments.profile, "--profile"))
    return profile_of_run(
        user_path(arguments.run_dir, "RUN_DIR"),
        arguments.measured_devices,
        arguments.measured_rollout_devices,
        arguments.measured_tensor_parallel or 1,
    )


def refuse_measured(arguments: argparse.Namespace) -> None:
    """What a run used can only be said of a run.

    Raises:
        ConfigError: it is said, and RUN_DIR is not given.
    """
    from omni_portable.contracts.errors import ConfigError

    for name in ("measured_devices", "measured_rollout_devices", "measured_tensor_parallel"):
        value = getattr(arguments, name)
        if value is not None and not arguments.run_dir:
            raise ConfigError(
                f"--{name.replace('_', '-')} {value} says what a run used, and no RUN_DIR is given",
                remedy="leave it out (rows of a profile hold their own devices), or name the run",
            )


def check_sync_rounds(arguments: argparse.Namespace) -> None:
    """
    Raises:
        ConfigError: weights that every step needs are to be sent less often.
    """
    from omni_portable.contracts.errors import ConfigError

    if arguments.max_staleness == 0 and arguments.sync_rounds > 1:
        raise ConfigError(
            f"--sync-rounds {arguments.sync_rounds}: with --max-staleness 0 every step needs the weights of the last",
            remedy="allow a staleness of 1 or more, or take --sync-rounds 1",
        )


def _save(profile: Profile, text: str) -> None:
    import json

    from omni_portable.config.paths import user_path
    from omni_portable.contracts.errors import ConfigError
    from omni_portable.planning.placement.profile import profile_document

    path = user_path(text, "--save-profile")
    try:
        path.write_text(json.dumps(profile_document(profile), indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"--save-profile: cannot write {path}: {error.strerror}") from error


def whole(text: str) -> int:
    """A whole number from 0, for argparse."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number")
    return int(text)


def amount(text: str) -> float:
    """A finite number above 0, for argparse."""
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < 1e9:
        raise argparse.ArgumentTypeError(f"{text!r} is no number above 0")
    return number
