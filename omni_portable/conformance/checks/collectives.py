"""Process groups: every collective gives right answers, and a missing rank is noticed, in processes of their own."""

from __future__ import annotations

from omni_portable.conformance.check import Check, Measurement, NotRun, Outcome
from omni_portable.conformance.children import Answer, Task, run_workers
from omni_portable.conformance.context import Context
from omni_portable.contracts import registry
from omni_portable.contracts.errors import DeviceError

RANKS = 2
LIMIT_S = 60.0
"""Limit of each collective."""
LATE_LIMIT_S = 3.0
"""Limit of the barrier that one rank misses."""


def _ranks(context: Context) -> int:
    """The host's processor serves any number of ranks; of an accelerator each rank needs one."""
    accelerator = registry.spec("device", context.device.name).capabilities.get("accelerator", True)
    return min(RANKS, context.device.identity().count) if accelerator else RANKS


def _self_test(context: Context) -> Outcome:
    world = _ranks(context)
    answers = _run(context, ["collectives"] * world, LIMIT_S)
    for rank, answer in enumerate(answers):
        if answer.error:
            raise DeviceError(f"rank {rank} of {world}: {answer.error}")
    names = set.intersection(*(set(answer.values) for answer in answers))
    slowest = {name: max(float(answer.values[name]) for answer in answers) for name in sorted(names)}
    alone = "" if world > 1 else "; one device is here, so one rank: nothing is proved about ranks reaching each other"
    return Outcome(
        [
            Measurement("ranks_with_right_answers", len(answers), "", "==", world),
            Measurement("collectives", len(slowest), "", ">=", 1),
            *(Measurement(name, seconds, "s") for name, seconds in slowest.items()),
        ],
        f"seconds are of one call on 1,024 numbers per rank, the slowest rank's{alone}",
        {"backend": context.device.collectives.backend, "ranks": str(world)},
    )


def _late_rank(context: Context) -> Outcome:
    """Rank 1 joins and then stays away; rank 0 must end with the device's error instead of waiting for ever."""
    if _ranks(context) < RANKS:
        raise NotRun(f"{RANKS} ranks need {RANKS} devices, and one is here")
    answer = _run(context, ["lonely_rank", "late_rank"], LATE_LIMIT_S, wait_for=1)[0]
    if answer.error:
        raise DeviceError(f"the group did not form: {answer.error}")
    noticed = str(answer.values.get("noticed", ""))
    return Outcome(
        [Measurement("noticed", float(bool(noticed)), "", "==", 1)],
        noticed or "the self-test passed although a rank was missing",
    )


def _run(context: Context, tasks: list[str], limit_s: float, wait_for: int | None = None) -> list[Answer]:
    def task(name: str, rank: int) -> Task:
        rendezvous = context.work / f"rendezvous-{'-'.join(tasks)}"
        rendezvous.unlink(missing_ok=True)
        arguments = {"device": context.device_name, "rank": rank, "world": len(tasks)}
        return Task(name, {**arguments, "rendezvous": str(rendezvous), "timeout_s": limit_s})

    made = [task(name, rank) for rank, name in enumerate(tasks)]
    return run_workers(made, context.device, context.work, wait_for=wait_for)


def _channels(context: Context) -> Outcome:
    offered = context.device.collectives.weight_channels()
    declared = context.device.capabilities().weight_channels
    return Outcome(
        [
            Measurement("channels", len(offered), "", ">=", 1),
            Measurement("differences", len(set(offered) ^ set(declared)), "", "==", 0),
        ],
        f"offered: {', '.join(offered)}; declared: {', '.join(declared)}",
    )


_REMEDY = (
    "check versions of torch and the collective library, the interface that ranks reach each other by, and that no "
    "firewall stands between them; the error names the rank and the collective"
)
CHECKS = (
    Check(
        "collectives.self-test",
        "collectives",
        "Processes form a group (two where there are two devices), and every collective is right on every rank.",
        "quick",
        _self_test,
        _REMEDY,
    ),
    Check(
        "collectives.late-rank",
        "collectives",
        "A rank that stays away is noticed within the limit.",
        "full",
        _late_rank,
        "use a version of the collective library that honours time limits: a job that loses a rank would hang here",
    ),
    Check(
        "collectives.channels",
        "collectives",
        "Ways to hand weights to another process exist and are declared.",
        "quick",
        _channels,
        "correct the device's capabilities, or its collectives",
    ),
)
