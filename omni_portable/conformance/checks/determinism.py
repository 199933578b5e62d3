"""Same seed, same bits: within a process, and from one process to the next."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from omni_portable.conformance.check import Check, Measurement, Outcome
from omni_portable.conformance.children import Task, run_workers
from omni_portable.conformance.context import PACKAGED_RECIPE, Context
from omni_portable.conformance.measures.training_step import step_checksums
from omni_portable.contracts.errors import DeviceError


def _report(context: Context) -> Outcome:
    report = context.device.determinism.enable(context.seed)
    promises = {f"not promised {number}": text for number, text in enumerate(report.not_promised, 1)}
    return Outcome(
        [
            Measurement("settings", len(report.applied), "", ">=", 1),
            Measurement("not_promised", len(report.not_promised)),
        ],
        "what was set, and what cannot be promised even then",
        {**report.applied, **promises},
    )


def _in_process(context: Context) -> Outcome:
    first = step_checksums(context, context.seed)
    second = step_checksums(context, context.seed)
    other = step_checksums(context, context.seed + 1)
    outcome = _compared(first, second, "of two steps in one process")
    # A step that ignores its seed would pass by accident.
    moved = len(_different(first, other))
    seeds = Measurement("tensors_that_another_seed_changes", moved, "", ">=", 1)
    return Outcome([*outcome.measurements, seeds], outcome.detail)


def _across_processes(context: Context) -> Outcome:
    arguments = {
        "device": context.device_name,
        "recipe": PACKAGED_RECIPE,
        "threads": torch.get_num_threads(),
        "seed": context.seed,
    }
    answer = run_workers([Task("training_step", arguments)], context.device, context.work)[0]
    if answer.error:
        raise DeviceError(f"the second process: {answer.error}")
    return _compared(step_checksums(context, context.seed), answer.values, "of this process and another")


def _compared(first: Mapping[str, str], second: Mapping[str, str], whose: str) -> Outcome:
    different = _different(first, second)
    names = ", ".join(different[:3])
    return Outcome(
        [
            Measurement("tensors", len(first), "", ">=", 1),
            Measurement("different_tensors", len(different), "", "==", 0),
        ],
        f"losses, gradients and weights {whose}: " + (f"first different: {names}" if names else "all bits are equal"),
    )


def _different(first: Mapping[str, str], second: Mapping[str, str]) -> list[str]:
    return [name for name in dict.fromkeys([*first, *second]) if first.get(name) != second.get(name)]


def _random_state(context: Context) -> Outcome:
    """What is drawn on the device repeats after its generator's state is set back, and after seeding."""
    device = context.device

    def draw() -> torch.Tensor:
        return torch.randn(4096, device=device.torch_device())

    device.manual_seed(context.seed)
    seeded, state = draw(), device.rng_state()
    continued = draw()
    device.set_rng_state(state)
    restored = draw()
    device.manual_seed(context.seed)
    again = draw()
    return Outcome(
        [
            Measurement("differences_after_restoring", int((continued != restored).sum()), "", "==", 0),
            Measurement("differences_after_seeding", int((seeded != again).sum()), "", "==", 0),
            Measurement("share_that_moves_on", float((seeded != continued).float().mean()), "", ">=", 0.9),
        ],
        "4,096 normal numbers drawn on the device",
    )


_REMEDY = (
    "set device.deterministic=true, look at what the device cannot promise (determinism.report), and choose another "
    "attention kernel: the first different tensor says where to look"
)
CHECKS = (
    Check(
        "determinism.report",
        "determinism",
        "The device says what it sets for repeatable runs, and what it cannot promise.",
        "quick",
        _report,
        "mend the device package: it sets nothing for determinism, so that runs cannot be repeated",
    ),
    Check(
        "determinism.random-state",
        "determinism",
        "The device's random generator repeats itself when it is seeded or set back.",
        "quick",
        _random_state,
        "correct rng_state, set_rng_state and manual_seed of the device: resumed runs would draw other numbers",
    ),
    Check(
        "determinism.in-process",
        "determinism",
        "A training step of the packaged model gives the same bits twice in one process.",
        "quick",
        _in_process,
        _REMEDY,
    ),
    Check(
        "determinism.across-processes",
        "determinism",
        "A training step of the packaged model gives the same bits in two processes.",
        "quick",
        _across_processes,
        _REMEDY,
    ),
)
