"""`omni-portable simulate`: a run of an execution mode on devices that need not be here."""

from __future__ import annotations

import argparse
import dataclasses
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from omni_portable.planning.placement.fit import Fit
    from omni_portable.planning.placement.profile import Placement, Profile
    from omni_portable.planning.simulate.workload import Loan

EXAMPLES = """examples:
  omni-portable simulate --devices 8 --mode separate_async --steps 200
  omni-portable simulate --profile measured.json --devices 64 --mode fully_async --steps 500 --times lognormal:0.4
  omni-portable simulate runs/sd3/my_recipe --devices 16 --rollout-devices 4 --mode separate_async --steps 200 --json
  omni-portable simulate --devices 8 --rollout-devices 2 --mode separate_async --steps 200 --lend 1
"""
MAX_DEVICES, MAX_STEPS = 65536, 1_000_000


def add_parser(subparsers: Any) -> None:
    from omni_portable.cli.placement import add_profile_arguments, amount, whole
    from omni_portable.cli.plan import positive

    parser = subparsers.add_parser(
        "simulate",
        help="simulate an execution mode on up to thousands of devices",
        description="Run the scheduling code of an execution mode and the replay buffer with simulated stage times: "
        "throughput, staleness, queues, utilisation. Without a run or profile, an example workload. See "
        "docs/placement.md.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_profile_arguments(parser)
    parser.add_argument("--devices", required=True, type=positive, metavar="N", help="devices altogether")
    parser.add_argument("--mode", required=True, choices=("sync", "separate_async", "fully_async"))
    parser.add_argument("--steps", required=True, type=positive, metavar="S")
    parser.add_argument(
        "--rollout-devices", type=positive, metavar="R", help="of an asynchronous mode (the split the planner finds)"
    )
    parser.add_argument("--tensor-parallel", type=positive, metavar="T", help="devices per replica (as measured)")
    parser.add_argument("--tokens", type=amount, metavar="L", help="mean response length (the longest measured)")
    parser.add_argument("--prompts", type=positive, metavar="P", help="prompts per step (as measured)")
    parser.add_argument("--samples", type=positive, metavar="n", help="samples per prompt (as measured)")
    parser.add_argument("--piece", type=positive, metavar="K", help="samples per call to a replica")
    parser.add_argument("--scorers", type=positive, default=1, metavar="W", help="calls scored at a time (1)")
    parser.add_argument("--max-staleness", type=whole, default=1, metavar="V", help="policy versions (1)")
    parser.add_argument("--sync-rounds", type=positive, default=1, metavar="K", help="steps between weight syncs (1)")
    parser.add_argument(
        "--times", default="constant", metavar="KIND", help="constant, lognormal:CV, or measured (constant)"
    )
    parser.add_argument(
        "--lend", type=positive, metavar="N", help="replicas that the trainer's devices lend to rollout (a run lends 1)"
    )
    parser.add_argument("--lend-below", type=share, default=1.0, metavar="X", help="as trainer.hybrid.lend_below (1)")
    parser.add_argument("--reclaim-at", type=share, default=1.0, metavar="X", help="as trainer.hybrid.reclaim_at (1)")
    parser.add_argument("--seed", type=whole, default=0)
    parser.add_argument("--json", action="store_true", help="print everything as JSON")
    parser.set_defaults(handler=handle)


def share(text: str) -> float:
    """A number above 0, at most 1."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= 1:
        raise argparse.ArgumentTypeError(f"{text} is not above 0 and at most 1")
    return value


def handle(arguments: argparse.Namespace) -> int:
    from omni_portable.cli.placement import chosen_profile
    from omni_portable.planning.placement.fit import fit
    from omni_portable.planning.placement.model import predict
    from omni_portable.planning.simulate.run import simulate
    from omni_portable.planning.simulate.text import outcome_as_data, outcome_as_text
    from omni_portable.planning.simulate.times import measured_ratios
    from omni_portable.planning.simulate.workload import EXAMPLE, check_size, make_workload

    _check(arguments)
    profile = chosen_profile(arguments) if arguments.run_dir or arguments.profile else EXAMPLE
    fitted = fit(profile)[0]
    tokens = arguments.tokens or max(row.tokens for row in profile.rows)
    placement = _placement(arguments, profile, fitted, tokens)
    workload = make_workload(
        profile,
        fitted.costs,
        placement,
        tokens,
        samples=arguments.samples,
        piece=arguments.piece,
        scorers=arguments.scorers,
        times=arguments.times,
        ratios=measured_ratios(profile, fitted.costs),
        loan=_loan(arguments, placement),
    )
    check_size(workload, arguments.steps)
    outcome, without = simulate(workload, arguments.steps, arguments.seed), None
    if workload.loan is not None:
        without = simulate(dataclasses.replace(workload, loan=None), arguments.steps, arguments.seed)
    planned = predict(fitted.costs, profile, placement, tokens)
    if arguments.json:
        import json

        print(json.dumps(outcome_as_data(profile.name, workload, outcome, planned, without), indent=2))
    else:
        print(outcome_as_text(profile.name, workload, outcome, planned, without))
    return 0


def _check(arguments: argparse.Namespace) -> None:
    from omni_portable.cli.placement import check_sync_rounds, refuse_measured
    from omni_portable.contracts.errors import ConfigError

    refuse_measured(arguments)
    for name, value, most in (("devices", arguments.devices, MAX_DEVICES), ("steps", arguments.steps, MAX_STEPS)):
        if value > most:
            raise ConfigError(f"--{name} {value} is more than is simulated", remedy=f"ask for {most} at most")
    if arguments.mode == "sync" and arguments.rollout_devices not in (None, arguments.devices):
        raise ConfigError(
            f"--rollout-devices {arguments.rollout_devices}: under sync rollout uses all {arguments.devices} devices",
            remedy="leave --rollout-devices out, or take --mode separate_async",
        )
    if arguments.mode == "sync" and arguments.lend:
        raise ConfigError(
            f"--lend {arguments.lend}: under sync rollout uses the trainer's devices anyway",
            remedy="leave --lend out, or take --mode separate_async",
        )
    if arguments.reclaim_at < arguments.lend_below:
        raise ConfigError(
            f"--reclaim-at {arguments.reclaim_at:g}: devices that are lent below {arguments.lend_below:g} would be "
            "taken back before they have drawn anything",
            remedy=f"take --reclaim-at {arguments.lend_below:g} or more, or a smaller --lend-below",
        )
    if arguments.mode != "sync":
        check_sync_rounds(arguments)


def _loan(arguments: argparse.Namespace, placement: Placement) -> Loan | None:
    from omni_portable.contracts.errors import ConfigError
    from omni_portable.planning.simulate.workload import Loan

    if not arguments.lend:
        return None
    most = placement.train_devices // placement.tensor_parallel
    if arguments.lend > most:
        raise ConfigError(
            f"--lend {arguments.lend}: the trainer's {placement.train_devices} devices make {most} replicas of "
            f"{placement.tensor_parallel}",
            remedy=f"take --lend {most} or less, or fewer --rollout-devices" if most else "leave --lend out",
        )
    return Loan(arguments.lend, arguments.lend_below, arguments.reclaim_at)


def _placement(arguments: argparse.Namespace, profile: Profile, fitted: Fit, tokens: float) -> Placement:
    """The mode with the split asked for, or the fastest by the planner."""
    from omni_portable.contracts.errors import ConfigError
    from omni_portable.planning.placement.advise import Request, placements
    from omni_portable.planning.placement.model import predict
    from omni_portable.planning.simulate.workload import EXAMPLE

    request = Request(
        devices=arguments.devices,
        prompts=arguments.prompts or (max(4, arguments.devices // 4) if profile is EXAMPLE else None),
        tensor_parallel=(arguments.tensor_parallel,) if arguments.tensor_parallel else (),
        max_staleness=arguments.max_staleness,
        sync_rounds=arguments.sync_rounds,
    )
    found = [placed for placed in placements(profile, request, arguments.rollout_devices)
             if placed.mode == arguments.mode]  # fmt: skip
    if not found:
        wanted = f" and {arguments.rollout_devices} of them for rollout" if arguments.rollout_devices else ""
        raise ConfigError(
            f"{arguments.mode} has no placement on {arguments.devices} devices{wanted}: both sides need one at least, "
            "and replicas must divide those of rollout",
            remedy="change --devices, --rollout-devices or --tensor-parallel",
        )
    return min(found, key=lambda placed: predict(fitted.costs, profile, placed, tokens).seconds_per_prompt)
