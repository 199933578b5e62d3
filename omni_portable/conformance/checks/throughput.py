"""How fast it is here: recorded for comparison, never judged."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace

from omni_portable.conformance.check import Check, Measurement, Outcome
from omni_portable.conformance.context import Context
from omni_portable.conformance.evidence.pair import checked_config, fixed_requests, opened_pair

REPEATS = 2
TRAINED = 16
"""Samples of a timed optimizer step, where a micro-batch holds as many."""


def _rollout(context: Context) -> Outcome:
    return asyncio.run(_measure_rollout(context))


async def _measure_rollout(context: Context) -> Outcome:
    """Full packs through the engine, after one that is not counted."""
    size = context.config.rollout.max_num_seqs
    with opened_pair(context, checked_config(context.config)) as pair:
        schedule = pair.probe.schedule
        rounds = [fixed_requests(context, schedule, size, f"throughput-{index}") for index in range(REPEATS + 1)]
        await pair.draw(rounds[0])
        pair.engine.statistics()
        context.device.synchronize()
        started = time.perf_counter()
        for requests in rounds[1:]:
            await pair.draw(requests)
        context.device.synchronize()
        seconds = time.perf_counter() - started
        parts = pair.engine.statistics()
    images = sum(len(requests) for requests in rounds[1:])
    prefix = "perf/rollout/seconds/"
    return Outcome(
        [
            Measurement("images_per_second", images / seconds, "images/s"),
            *(
                Measurement(f"share_of_{name.removeprefix(prefix)}", value / seconds)
                for name, value in sorted(parts.items())
                if name.startswith(prefix)
            ),
            *_memory(context),
        ],
        f"{images} images of {context.config.rollout.width} x {context.config.rollout.height} pixels in "
        f"{context.config.rollout.num_steps} steps, {size} per forward.",
        _facts(context),
    )


def _train_step(context: Context) -> Outcome:
    return asyncio.run(_measure_train_step(context))


async def _measure_train_step(context: Context) -> Outcome:
    """Optimizer steps on one batch in the recipe's own micro-batches, after one that is not counted."""
    config = replace(context.config, actor=replace(context.config.actor, warmup_steps=0))
    with opened_pair(context, config, TRAINED) as pair:
        drawn = await pair.draw(pair.requests)
        batch = pair.batch(drawn)
        seconds = _timed(context, lambda: pair.actor.train_step(batch, pair.algorithm))
    samples = len(batch.trajectories)
    return Outcome(
        [
            Measurement("samples_per_second", samples / seconds, "samples/s"),
            Measurement("seconds_per_step", seconds, "s"),
            *_memory(context),
        ],
        f"One optimizer step on {samples} samples, {len(drawn[0].step_indices)} stochastic steps each.",
        _facts(context),
    )


def _weight_sync(context: Context) -> Outcome:
    with opened_pair(context, checked_config(context.config), samples=1) as pair:
        version = 0

        def sync() -> None:
            nonlocal version
            version += 1
            pair.engine.update_weights(pair.actor.weights(), version)

        pair.engine.pause()
        moved = pair.actor.weights().manifest.bytes
        seconds = _timed(context, sync)
    return Outcome(
        [
            Measurement("megabytes_per_second", moved / 1e6 / seconds, "MB/s"),
            Measurement("seconds_per_sync", seconds, "s"),
            Measurement("bytes", moved, "bytes"),
            *_memory(context),
        ],
        "From the actor's weights to verified weights in the rollout engine, checksums on both sides included.",
        _facts(context),
    )


def _timed(context: Context, work: Callable[[], object]) -> float:
    """Mean seconds of `work`, after one call that is not counted."""
    work()
    context.device.synchronize()
    started = time.perf_counter()
    for _ in range(REPEATS):
        work()
    context.device.synchronize()
    return (time.perf_counter() - started) / REPEATS


def _memory(context: Context) -> list[Measurement]:
    stats = context.device.memory.stats()
    return [Measurement("memory_peak", stats.peak, "bytes"), Measurement("memory_used", stats.used, "bytes")]


def _facts(context: Context) -> dict[str, str]:
    return {
        "dtype": context.model.dtype,
        "rollout engine": context.config.rollout.engine,
        "train engine": context.config.actor.engine,
    }


CHECKS: tuple[Check, ...] = (
    Check(
        "throughput.rollout",
        "throughput",
        "Images per second of the rollout engine, and where its time goes.",
        "quick",
        _rollout,
        "nothing to mend: figures are recorded for comparison",
    ),
    Check(
        "throughput.train-step",
        "throughput",
        "Samples per second of the train engine.",
        "quick",
        _train_step,
        "nothing to mend: figures are recorded for comparison",
    ),
    Check(
        "throughput.weight-sync",
        "throughput",
        "Time and bandwidth of a verified weight update.",
        "quick",
        _weight_sync,
        "nothing to mend: figures are recorded for comparison",
    ),
)
