"""The checkpoint stage: what a run must write down to go on exactly where it stopped."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from omni_portable.config.schema import RunConfig
from omni_portable.contracts.device import Device
from omni_portable.contracts.disk import disk_errors
from omni_portable.contracts.errors import CheckpointError
from omni_portable.contracts.training import TrainEngine
from omni_portable.trainer.checkpoint import (
    TrainerState,
    list_checkpoints,
    prune_checkpoints,
    read_checkpoint,
    save_checkpoint,
)
from omni_portable.trainer.inputs import FILE as INPUTS
from omni_portable.trainer.inputs import Inputs, check_inputs
from omni_portable.trainer.rundir import write_json

log = logging.getLogger(__name__)

FREE_KEYS = {
    "recipe",
    "trainer.total_steps",
    "trainer.run_dir",
    "trainer.resume",
    "trainer.save_interval",
    "trainer.keep_checkpoints",
    "trainer.validate_interval",
    "trainer.validate_before",
    "trainer.validation_images",
    "trainer.loggers",
    "trainer.progress",
    "trainer.actor_sleeps",
    "trainer.hybrid",
    "trainer.sync_attempts",
    "teacher.placement",
    "teacher.workers",
    "teacher.timeout_s",
    "teacher.retries",
    "teacher.max_mib",
    "rollout.sleep_level",
    "rollout.replicas",
    "rollout.attempts",
    "reward.workers",
    "launcher",
    "dataplane.name",
    "dataplane.options",
    "actor.world_size",
    "actor.sharding",
    "actor.offload",
    "actor.gradient_sync",
    "actor.sequence_parallel",
    "actor.tensor_parallel",
    "actor.rank_timeout_s",
    "consistency",
}
"""Keys that may change between a checkpoint and its continuation: they do not enter the numbers, beyond the order in
which fp32 gradients are summed."""
SHOWN = 8
"""Changed keys that an error lists."""


def is_free(key: str) -> bool:
    """Does this dotted key, or a section that it is in, belong to :data:`FREE_KEYS`?"""
    return any(key == free or key.startswith(f"{free}.") for free in FREE_KEYS)


def deciding_keys(config: RunConfig) -> dict[str, Any]:
    """Dotted key -> value of everything that decides the numbers of a run."""
    flat: dict[str, Any] = {}

    def walk(prefix: str, value: Any) -> None:
        if prefix in FREE_KEYS:
            return
        if isinstance(value, dict) and value:
            for key, inner in value.items():
                walk(f"{prefix}.{key}" if prefix else key, inner)
        else:
            flat[prefix] = value

    walk("", dataclasses.asdict(config))
    return flat


def fingerprint(config: RunConfig) -> str:
    text = json.dumps(deciding_keys(config), sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


class CheckpointStage:
    """Saves engine, random state, configuration and the digests of what the run reads; keeps the newest few."""

    def __init__(
        self, root: Path, actor: TrainEngine, device: Device, config: RunConfig, inputs: Inputs | None = None
    ) -> None:
        self._root, self._actor, self._device, self._config = root, actor, device, config
        self._inputs = inputs or {}
        self.fingerprint = fingerprint(config)

    def run(self, state: TrainerState) -> Path:
        saved = save_checkpoint(self._root, state, self._write)
        prune_checkpoints(self._root, self._config.trainer.keep_checkpoints)
        return saved

    def _write(self, folder: Path) -> None:
        (folder / "actor").mkdir()
        self._actor.save(folder / "actor")
        rng = {"host": torch.get_rng_state(), "device": torch.as_tensor(self._device.rng_state())}
        with disk_errors(folder):
            save_file(rng, folder / "rng.safetensors")
        write_json(folder / "config.json", deciding_keys(self._config))
        write_json(folder / INPUTS, self._inputs)


def open_checkpoint(folder: Path, config: RunConfig, inputs: Inputs | None = None) -> TrainerState:
    """Check that a checkpoint is whole and belongs to this run, before anything loads or is overwritten.

    Raises:
        CheckpointError: the checkpoint is damaged, was made with other settings or other contents of what the run
            reads (the message lists them), or is of a later step than the run is to reach.
    """
    state = read_checkpoint(folder)
    if state.fingerprint != fingerprint(config):
        raise CheckpointError(
            f"checkpoint {folder} was made with other settings: {_difference(folder, config)}",
            remedy="continue with the settings of the checkpoint, or start a new run in another trainer.run_dir",
        )
    if (folder / INPUTS).is_file():
        check_inputs(folder, json.loads((folder / INPUTS).read_text(encoding="utf-8")), inputs or {})
    else:
        log.warning("checkpoint %s does not say what prompts and models held: whether they changed is unknown", folder)
    if state.step > config.trainer.total_steps:
        raise CheckpointError(
            f"checkpoint {folder} is beyond trainer.total_steps={config.trainer.total_steps}: {state.step} steps are "
            "done",
            remedy=f"set trainer.total_steps to more than {state.step} to train on, or name an earlier checkpoint with "
            "trainer.resume=FOLDER",
            choices=[path.name for path in list_checkpoints(folder.parent) if path != folder],
        )
    return state


def restore(folder: Path, actor: TrainEngine, device: Device) -> None:
    """Bring actor and random state back from a checkpoint that :func:`open_checkpoint` has checked."""
    actor.load(folder / "actor")
    rng = load_file(folder / "rng.safetensors")
    torch.set_rng_state(rng["host"])
    device.set_rng_state(rng["device"])


def _difference(folder: Path, config: RunConfig) -> str:
    saved = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    now = json.loads(json.dumps(deciding_keys(config), default=str))
    changed = sorted(key for key in saved.keys() | now.keys() if _value(saved, key) != _value(now, key))
    shown = [f"{key}: {_value(saved, key)} then, {_value(now, key)} now" for key in changed[:SHOWN]]
    return ", ".join(shown) + (f", and {len(changed) - SHOWN} more" if len(changed) > SHOWN else "")


def _value(settings: dict[str, Any], key: str) -> str:
    return repr(settings[key]) if key in settings else "not set"
