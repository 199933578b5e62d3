"""The resolved plan of a run in words: what one rollout makes, and how many optimizer steps come of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from omni_portable.config.batches import Batches, resolve_batches
from omni_portable.config.colocation import beside_ranks, rank_processes
from omni_portable.config.correction import effective
from omni_portable.config.drawing import validation_changes
from omni_portable.config.kinds import trained_kind
from omni_portable.config.modes import SYNC
from omni_portable.config.plugins import algorithm_options, gives_samples, plugin_spec
from omni_portable.config.schema import RunConfig


def stochastic_steps(options: Any, num_steps: int) -> int | None:
    """How many denoising steps of a sample are trained on, where the algorithm's options tell.

    They tell by `steps(num_steps, seed)`; their number does not depend on the seed."""
    steps = getattr(options, "steps", None)
    return len(steps(num_steps, 0)) if callable(steps) else None


def plan_text(config: RunConfig) -> str:
    """Prompts x samples, packs, mini-batches, micro-batches, forwards and optimizer steps, a line each."""
    batches = resolve_batches(config)
    tokens = trained_kind(config) == "autoregressive"
    trained = 1 if tokens else stochastic_steps(algorithm_options(config), config.rollout.num_steps)
    if gives_samples(config):
        drawn = _given_lines(config, batches)
    else:
        drawn = _response_lines(config, batches) if tokens else _rollout_lines(config, batches)
    lines = [*drawn, *_actor_lines(config, batches, trained, tokens), *_run_lines(config, batches)]
    return "\n".join(lines)


def _rollout_lines(config: RunConfig, batches: Batches) -> Sequence[str]:
    rollout = config.rollout
    guided = " (each of twice the batch, for guidance)" if rollout.guidance_scale != 1 else ""
    return [
        f"{_drawn(batches, 'sample')} of {rollout.height} x {rollout.width} pixels",
        f"  {_several(batches.packs, 'pack')} of up to {batches.pack_size} x "
        f"{_several(rollout.num_steps, 'denoising step')} = "
        f"{_several(batches.packs * rollout.num_steps, 'forward')}{guided}",
    ]


def _given_lines(config: RunConfig, batches: Batches) -> Sequence[str]:
    """Of an engine that takes samples from the dataset: nothing is denoised or generated."""
    return [
        f"{_drawn(batches, 'sample')} from the dataset ({', '.join(config.data.targets)}), none of them drawn",
    ]


def _response_lines(config: RunConfig, batches: Batches) -> Sequence[str]:
    most = config.rollout.max_new_tokens
    return [
        f"{_drawn(batches, 'response')} of up to {_several(most, 'token')}",
        f"  {_several(batches.packs, 'pack')} of up to {batches.pack_size}: a forward for each token of the longest "
        f"response, and one to score the pack = up to {_several(batches.packs * (most + 1), 'forward')}",
    ]


def _actor_lines(config: RunConfig, batches: Batches, trained: int | None, tokens: bool) -> Sequence[str]:
    micro = batches.micro_batches * batches.mini_batches * batches.epochs
    forwards = _several(micro * trained, "forward-backward pass") if trained else _several(micro, "micro-batch")
    window = f" x {_several(trained, 'stochastic step')}" if trained else " x the algorithm's noise levels"
    window = "" if tokens else window
    uneven = batches.mini_batch_size % batches.micro_batch_size
    last = f" (the last has {uneven})" if uneven else ""
    exact = "micro-batches equal the rollout's packs: with equal kernels on-policy ratios start at exactly 1"
    engine = plugin_spec("rollout_engine", config.rollout.engine, "rollout.engine")
    if not engine.capabilities.get("actor_kernels"):
        exact = (
            f"micro-batches equal the rollout's packs, but rollout.engine={config.rollout.engine} has kernels of its "
            "own: on-policy ratios start near 1, the gap is measured"
        )
    inexact = "micro-batches differ from the rollout's packs: on-policy ratios start near 1, the gap is measured"
    whole = "all weights" if tokens else "all weights of the transformer"
    what = f"LoRA of rank {config.model.lora.rank}" if config.model.lora.rank else whole
    passes = "1 pass" if batches.epochs == 1 else f"{batches.epochs} passes"
    steps = _several(batches.optimizer_steps, "optimizer step")
    micro_batches = _several(batches.micro_batches, "micro-batch")
    lines = [
        f"each update: {passes} over {_several(batches.mini_batches, 'mini-batch')} of "
        f"{_several(batches.mini_batch_size, 'sample')} = {steps} on {what}",
        f"  {micro_batches} of {batches.micro_batch_size}{last} per mini-batch{window}: {forwards} per rollout",
    ]
    compared = tokens or trained is not None
    return [*lines, f"  {exact if batches.aligned else inexact}"] if compared and not gives_samples(config) else lines


def _run_lines(config: RunConfig, batches: Batches) -> Sequence[str]:
    steps = config.trainer.total_steps
    lines = [
        f"the run: {_several(steps, 'rollout')}, {_several(steps * batches.samples, 'sample')}, "
        f"{_several(steps * batches.optimizer_steps, 'optimizer step')}",
    ]
    lines += [*_mode_lines(config), *_process_lines(config)]
    if config.data.validation:
        every = config.trainer.validate_interval
        when = "before and after" if config.trainer.validate_before else "after"
        lines.append(
            f"  validation {when} training"
            + (f" and every {_several(every, 'step')}" if every else "")
            + _differs(config)
        )
    else:
        lines.append("  no validation: data.validation is empty")
    return lines


def _mode_lines(config: RunConfig) -> Sequence[str]:
    """How rollout and training share time; nothing where they take turns in one place."""
    trainer, hybrid = config.trainer, config.trainer.hybrid
    if trainer.mode == SYNC:
        replicas = f"{_several(config.rollout.replicas, 'rollout replica')} and the actor take turns"
        ranks = _several(rank_processes(config), "rank")
        return [f"  mode sync: {replicas} on the devices of its {ranks}"] if beside_ranks(config) else []
    again = "go on" if trained_kind(config) == "autoregressive" else "begin again"
    travel = f"interrupt requests, which {again} afterwards" if trainer.mode == "fully_async" else "wait for requests"
    versions = config.dataplane.max_staleness
    ahead = f"rollout runs up to {_several(versions, 'policy version')} ahead of training"
    if not versions:
        ahead = (
            "with dataplane.max_staleness=0 rollout waits for every update, so nothing overlaps with training (set "
            "dataplane.max_staleness=1 or more)"
        )
    lines = [
        f"  mode {trainer.mode}: {ahead}; new weights {travel}",
        f"  weights are handed over every {_several(trainer.sync_interval, 'optimizer step')}, at the end of a round",
    ]
    if config.rollout_correction.mode == "auto" and effective(config).mode != "off":
        lines.append(
            "  samples may be older than the actor, which scores them again before an update; ratios are taken against "
            "that (rollout_correction.mode=auto)"
        )
    if hybrid.enabled:
        lines.append(
            f"  the actor's devices are lent to rollout while less than {100 * hybrid.lend_below:g} % of a step's "
            f"samples is ready, and taken back at {100 * hybrid.reclaim_at:g} %"
        )
    return lines


def _differs(config: RunConfig) -> str:
    """', with num_steps 40, height 1024' where validation draws unlike training."""
    changes = ", ".join(f"{key} {value:g}" for key, value in validation_changes(config).items())
    return f", with {changes}" if changes else ""


def _process_lines(config: RunConfig) -> Sequence[str]:
    """Who gets a process of its own; nothing where all roles live in the command's."""
    if not plugin_spec("launcher", config.launcher.name, "launcher.name").capabilities.get("multi_process"):
        return []
    pooled = config.teacher.placement == "pool"
    counts = {
        "rank": rank_processes(config),
        "rollout replica": config.rollout.replicas,
        "reward worker": config.reward.workers,
        "teacher worker": config.teacher.workers * len(config.model.teachers) if pooled else 0,
    }
    listed = ", ".join(_several(count, noun) for noun, count in counts.items() if count)
    return [f"  launcher {config.launcher.name}, beside this process: {listed}"]


def _drawn(batches: Batches, noun: str) -> str:
    """'each rollout: 2 prompts x 8 samples = 16 responses'."""
    each = f"{_several(batches.prompts, 'prompt')} x {_several(batches.samples_per_prompt, 'sample')}"
    return f"each rollout: {each} = {_several(batches.samples, noun)}"


def _several(count: int, noun: str) -> str:
    """'1 step', '2 steps', '2 mini-batches', '2 passes'."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}{'es' if noun.endswith(('ch', 'ss')) else 's'}"
