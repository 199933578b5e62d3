"""One run from configuration to report: prepare, open the run directory, build the roles, train, sum up."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from omni_portable.config.kinds import trained_kind
from omni_portable.config.loader import plugin_options, to_yaml
from omni_portable.config.modes import SYNC
from omni_portable.config.plan import plan_text
from omni_portable.config.schema import RunConfig, TrainerConfig
from omni_portable.contracts import registry
from omni_portable.contracts.disk import disk_errors
from omni_portable.contracts.errors import OmniPortableError
from omni_portable.contracts.launcher import Launcher
from omni_portable.contracts.model import DiffusionAdapter
from omni_portable.contracts.training import TrainEngine
from omni_portable.models.setup import EngineSetup, load_adapter
from omni_portable.rollout.replay_buffer import ReplayBuffer
from omni_portable.trainer.attended import attended
from omni_portable.trainer.checkpoint import TrainerState, list_checkpoints, resolve_resume, rewind, step_of
from omni_portable.trainer.consistency import SyncProof, probe_limit
from omni_portable.trainer.drawing import drawing, schedules
from omni_portable.trainer.environment import describe_environment
from omni_portable.trainer.inputs import Inputs, run_inputs
from omni_portable.trainer.loop import Loop
from omni_portable.trainer.modes.base import Server
from omni_portable.trainer.modes.choose import make_lending, make_turns
from omni_portable.trainer.modes.gate import Gate
from omni_portable.trainer.modes.slots import Slots
from omni_portable.trainer.modes.stock import Stock
from omni_portable.trainer.placing import Placed, make_launcher, place
from omni_portable.trainer.preflight import Prepared, prepare, verify_attention
from omni_portable.trainer.producer import Producer
from omni_portable.trainer.progress import PlainProgress, Progress, make_progress, starting_line
from omni_portable.trainer.report import write_report
from omni_portable.trainer.rollout_stage import RolloutStage
from omni_portable.trainer.rundir import RunDirectory, refuse_second_run, run_directory, write_json, write_text
from omni_portable.trainer.runlog import log_to
from omni_portable.trainer.saving import CheckpointStage, deciding_keys, fingerprint, open_checkpoint, restore
from omni_portable.trainer.stages import AdvantageStage, RewardStage, UpdateStage
from omni_portable.trainer.summary import summarise
from omni_portable.trainer.teaching import TeacherStage
from omni_portable.trainer.timeline import rewind_timeline
from omni_portable.trainer.timing import StageClock
from omni_portable.trainer.validation import ValidationStage

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class RunOutcome:
    """Where the results are, and the content of summary.json."""

    run_dir: Path
    report: Path
    summary: dict[str, Any]


@dataclass(frozen=True)
class Start:
    """Where a run begins: from a checkpoint or (None) from the start, and what it reads (`inputs.run_inputs`)."""

    checkpoint: Path | None
    state: TrainerState
    inputs: Inputs


def run(config: RunConfig) -> RunOutcome:
    """Train as configured (a configuration from `load_config`); continue a run where trainer.resume says so."""
    if config.device.threads:
        torch.set_num_threads(config.device.threads)
    path = run_directory(config)
    refuse_second_run(path, config.trainer.resume)
    launcher = make_launcher(config)
    for kind, names in (("data_plane", [config.dataplane.name]), ("logger", config.trainer.loggers)):
        for name in names:
            registry.load(kind, name)  # a package that it lacks is missed here, before there is a run directory
    prepared = prepare(config)
    said = config.trainer.progress != "off"
    with RunDirectory(path, config.trainer.resume) as directory, log_to(directory.path / "log.txt", said):
        checkpoint = resolve_resume(directory.path, config.trainer.resume)
        state = TrainerState(step=0, policy_version=1, fingerprint=fingerprint(config))
        inputs = run_inputs(config, deciding_keys(config), prepared.train_rows, prepared.validation_rows)
        if checkpoint is not None:
            state = open_checkpoint(checkpoint, config, inputs)
        with ExitStack() as stack:
            loop = _build(config, launcher, prepared, directory, Start(checkpoint, state, inputs), stack)
            with _stopping():
                asyncio.run(attended(loop.run(), launcher))
                with disk_errors(directory.path / "export"):
                    loop.actor.export(directory.path / "export", "ema" if config.actor.ema_decay else "current")
        with _stopping():
            summary = summarise(directory.path)
            write_json(directory.path / "summary.json", summary)
            return RunOutcome(directory.path, write_report(directory.path), summary)


@contextmanager
def _stopping() -> Iterator[None]:
    """Mark errors in here as such that ended a run."""
    try:
        yield
    except OmniPortableError as error:
        error.stopped_run = True
        raise


def _build(
    config: RunConfig,
    launcher: Launcher,
    prepared: Prepared,
    directory: RunDirectory,
    start: Start,
    stack: ExitStack,
) -> Loop:
    device, checkpoint, state = prepared.device, start.checkpoint, start.state
    determinism = device.determinism.enable(config.trainer.seed) if config.device.deterministic else None
    setup = EngineSetup(config=config, device=device, load=prepared.load, requires=prepared.algorithm.requires)
    stack.callback(launcher.shutdown)
    if config.trainer.progress != "off":  # a live display begins when there is something to show
        line = starting_line(config.rollout.engine, config.launcher.name, config.rollout.replicas)
        PlainProgress(config.trainer.total_steps, state.step).note(line)
    placed = place(launcher, setup, prepared.composer, directory.path, stack)
    actor = placed.actor
    adapter = load_adapter(setup, ()) if trained_kind(config) == "diffusion" else None
    verified = verify_attention(prepared, adapter, config) if config.device.verify_attention else []
    checkpoints = checkpoints_to_come(directory.path, config.trainer, state.step)
    directory.require_space(
        _space_needed(actor, checkpoints),
        f"{checkpoints} more checkpoints at a time (trainer.keep_checkpoints={config.trainer.keep_checkpoints}), the "
        "export, images and logs",
    )
    if checkpoint is not None:
        restore(checkpoint, actor, device)
        log.info("continuing %s after step %d of %d", checkpoint, state.step, config.trainer.total_steps)
    # Only now, when nothing of the new configuration can be refused any more, does it replace what is there.
    for kept in rewind(directory.path, state.step):
        log.info("a later checkpoint is kept as %s", kept)
    rewind_timeline(directory.path, state.step)
    write_text(directory.path / "config.yaml", to_yaml(config))
    write_text(directory.path / "plan.txt", plan_text(config))
    environment = describe_environment(device, prepared.dtype, prepared.load.attention, verified, determinism)
    write_json(directory.path / "environment.json", environment)
    progress = make_progress(config.trainer.progress, config.trainer.total_steps, state.step)
    stack.callback(progress.close)
    return _wire(config, prepared, directory.path, placed, adapter, start, progress, stack)


def _wire(
    config: RunConfig,
    prepared: Prepared,
    run_dir: Path,
    placed: Placed,
    adapter: DiffusionAdapter | None,
    start: Start,
    progress: Progress,
    stack: ExitStack,
) -> Loop:
    state = start.state
    actor, engine = placed.actor, placed.engine
    gate, slots, mode = Gate(), Slots(config.rollout.replicas), config.trainer.mode
    overlap = config.reward.overlap or mode != SYNC or bool(placed.teachers)
    reward = RewardStage(*placed.rewards)
    rollout = RolloutStage(
        engine,
        piece_size=config.rollout.max_num_seqs if overlap else 0,
        slots=slots,
        gate=gate,
        resubmit=mode == "fully_async",
    )
    if registry.spec("data_plane", config.dataplane.name).capabilities.get("multi_process"):
        progress.note(f"starting data plane {config.dataplane.name} ...")
    plane = registry.load("data_plane", config.dataplane.name)(
        plugin_options("data_plane", config.dataplane.name, config.dataplane.options)
    )
    stack.callback(plane.close)
    buffer = ReplayBuffer(plane, config.dataplane.max_staleness)
    if left := buffer.discard():
        log.info("%d groups of an earlier process waited; they are drawn again from the checkpoint's policy", left)
    requests = drawing(config, prepared.algorithm, None if adapter is None else schedules(config, adapter))
    probe = requests.probe(prepared.train_rows[0]) if config.consistency.probe else None
    validation = None
    if prepared.validation_rows:
        validation = ValidationStage(
            RolloutStage(engine),
            reward,
            requests.validation(prepared.validation_rows),
            run_dir / "validation",
            config.trainer.validation_images,
        )
    clock, stock = StageClock(), Stock(config.data.train_batch_size * config.rollout.n)
    producer = Producer(
        config=config,
        sampler=prepared.sampler,
        algorithm=prepared.algorithm,
        requests=requests,
        rollout=rollout,
        reward=reward,
        buffer=buffer,
        clock=clock,
        progress=progress,
        overlap=overlap,
        stock=stock if placed.guests else None,
        teacher=TeacherStage(config.model, config.teacher, placed.teachers) if placed.teachers else None,
    )
    limit = probe_limit(prepared.dtype, config.consistency.max_logprob_gap)
    server = Server(
        actor=actor,
        engine=engine,
        proof=SyncProof(actor, engine, probe, limit=limit),
        buffer=buffer,
        version=state.policy_version,
        policy=prepared.algorithm.rollout_policy,
        sleep_level=config.rollout.sleep_level,
        attempts=config.trainer.sync_attempts,
    )
    lending = None if not placed.guests else make_lending(config, placed, slots, stock, clock)
    turns = make_turns(config, producer.produce, server, buffer, gate, state.step, lending)
    loggers = [
        registry.load("logger", name)(plugin_options("logger", name, {}), run_dir, state.step)
        for name in config.trainer.loggers
    ]
    for logger in loggers:
        stack.callback(logger.close)
    return Loop(
        config=config,
        run_dir=run_dir,
        actor=actor,
        engine=engine,
        producer=producer,
        buffer=buffer,
        advantage=AdvantageStage(prepared.algorithm, config.data.train_batch_size),
        update=UpdateStage(actor, prepared.algorithm, config.actor.mini_batch_size, config.actor.epochs),
        turns=turns,
        validation=validation,
        checkpoint=CheckpointStage(run_dir / "checkpoints", actor, prepared.device, config, start.inputs),
        loggers=loggers,
        clock=clock,
        progress=progress,
        start_step=state.step,
    )


def checkpoints_to_come(run_dir: Path, trainer: TrainerConfig, step: int) -> int:
    """How many checkpoints more than now the disk must hold at a time: one is written before the oldest goes."""
    interval, total = trainer.save_interval, trainer.total_steps
    saves = (total // interval - step // interval + (total % interval > 0) if interval else 1) if step < total else 0
    kept = len([path for path in list_checkpoints(run_dir / "checkpoints") if step_of(path) <= step])
    return min(saves, max(1, trainer.keep_checkpoints + 1 - kept)) if trainer.keep_checkpoints else saves


def _space_needed(actor: TrainEngine, checkpoints: int) -> int:
    """Weights, two optimizer moments and one policy copy in each checkpoint, the export, and images and logs."""
    return actor.weights().manifest.bytes * (4 * checkpoints + 1) + (32 << 20)
