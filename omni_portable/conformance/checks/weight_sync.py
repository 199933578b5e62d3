"""An update of the actor's weights reaches the rollout engine, provably; a damaged one is refused whole."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping

import torch

from omni_portable.conformance.check import Check, Measurement, NotRun, Outcome
from omni_portable.conformance.context import Context
from omni_portable.conformance.evidence.pair import Pair, checked_config, opened_pair
from omni_portable.contracts import registry
from omni_portable.contracts.errors import WeightSyncError
from omni_portable.contracts.lifecycle import EngineState
from omni_portable.contracts.rollout import RolloutEngine
from omni_portable.contracts.weights import WeightStream
from omni_portable.models.weights import NamedTensorStream
from omni_portable.trainer.consistency import RESOLUTION, SyncProof
from omni_portable.trainer.modes.base import push_weights

LORA_RANK = 4
"""Where the recipe trains no LoRA of its own."""
SAMPLES = 8
"""Of the optimizer step between two updates."""


def _full(context: Context) -> Outcome:
    _require(context, "full_weights")
    if context.config.model.lora.rank and not context.config.model.path.startswith("builtin:"):
        raise NotRun("the recipe trains a LoRA, and all weights of its model may not fit beside their optimizer")
    return asyncio.run(_sync(context, 0))


def _lora(context: Context) -> Outcome:
    _require(context, "lora")
    return asyncio.run(_sync(context, context.config.model.lora.rank or LORA_RANK))


async def _sync(context: Context, lora_rank: int) -> Outcome:
    """Push the weights, push the same weights again, take an optimizer step, push once more; a proof after each."""
    with opened_pair(context, checked_config(context.config, lora_rank), SAMPLES) as pair:
        proof = SyncProof(pair.actor, pair.engine, pair.probe)
        first = await _push(pair, proof, 1)
        repeated = await _push(pair, proof, 2)
        await _optimizer_step(pair)
        started = time.perf_counter()
        changed = await _push(pair, proof, 3)
        seconds = time.perf_counter() - started
        manifest = pair.actor.weights().manifest
        differing = _differing(pair.actor.weights_checksum(), pair.engine.weights_checksum(manifest.tensors))
        bound = sum(".lora_A." in name for name in pair.engine.weights_checksum())
    measurements = [
        Measurement("tensors", len(manifest.tensors)),
        Measurement("bytes", manifest.bytes, "bytes"),
        Measurement("tensors_that_differ", differing, "", "==", 0),
        Measurement("probe_change_without_update", _largest(repeated - first), "", "==", 0),
        Measurement("probe_change_after_update", _largest(changed - repeated), "", ">=", RESOLUTION),
        Measurement("sync_and_proof_seconds", seconds, "s"),
    ]
    if manifest.lora is not None:
        expected = manifest.lora.expected_modules
        measurements.append(Measurement("lora_modules_bound", bound, "", "==", expected))
    return Outcome(
        measurements,
        "Three updates were proved: checksums on both sides are equal, and the probe's output changed exactly when the "
        "weights had.",
        {"mode": manifest.mode, "rollout engine": pair.engine.name, "train engine": pair.actor.name},
    )


def _refused(context: Context) -> Outcome:
    return asyncio.run(_refuse(context))


async def _refuse(context: Context) -> Outcome:
    with opened_pair(context, checked_config(context.config), SAMPLES) as pair:
        await _push(pair, SyncProof(pair.actor, pair.engine, pair.probe), 1)
        held = pair.engine.weights_checksum()
        output = await _output(pair)
        await _optimizer_step(pair)
        pair.engine.pause()
        refused = [_is_refused(pair.engine, damage(pair.actor.weights()), 2) for damage in (_flipped, _cut_short)]
        health = pair.engine.health()
        differing = _differing(held, pair.engine.weights_checksum())
        pair.engine.resume()
        moved = _largest(await _output(pair) - output)
    return Outcome(
        [
            Measurement("refused_with_one_value_changed", float(refused[0]), "", "==", 1),
            Measurement("refused_with_last_tensor_missing", float(refused[1]), "", "==", 1),
            Measurement("paused_afterwards", float(health.state is EngineState.PAUSED), "", "==", 1),
            Measurement("policy_version_afterwards", health.policy_version, "", "==", 1),
            Measurement("tensors_changed", differing, "", "==", 0),
            Measurement("probe_change", moved, "", "==", 0),
        ],
        "A stream with one changed value and one without its last tensor were refused; the engine kept the old policy.",
        {"rollout engine": pair.engine.name},
    )


async def _push(pair: Pair, proof: SyncProof, version: int) -> torch.Tensor:
    """Publish and prove the actor's weights as a run does; the probe's clean latents under them."""
    pair.engine.pause()
    await push_weights(pair.actor, pair.engine, proof, version)
    return await _output(pair)


async def _output(pair: Pair) -> torch.Tensor:
    return (await pair.draw([pair.probe]))[0].final_latents


async def _optimizer_step(pair: Pair) -> None:
    pair.actor.train_step(pair.batch(await pair.draw(pair.requests)), pair.algorithm)


def _is_refused(engine: RolloutEngine, stream: WeightStream, version: int) -> bool:
    try:
        engine.update_weights(stream, version)
    except WeightSyncError:
        return True
    return False


def _flipped(stream: WeightStream) -> NamedTensorStream:
    """The stream with one value of its middle tensor changed, under the manifest of the unchanged one."""
    tensors = dict(stream)
    name = list(tensors)[len(tensors) // 2]
    changed = tensors[name].clone()
    changed.view(-1)[0] += 1
    return NamedTensorStream(stream.manifest, {**tensors, name: changed})


def _cut_short(stream: WeightStream) -> NamedTensorStream:
    tensors = list(stream)
    return NamedTensorStream(stream.manifest, dict(tensors[:-1]))


def _differing(ours: Mapping[str, str], theirs: Mapping[str, str]) -> int:
    return sum(theirs.get(name) != checksum for name, checksum in ours.items())


def _largest(difference: torch.Tensor) -> float:
    return difference.abs().max().item()


def _require(context: Context, ability: str) -> None:
    name = context.config.rollout.engine
    if not registry.spec("rollout_engine", name).capabilities.get(ability, False):
        raise NotRun(f"rollout engine '{name}' does not take such updates ({ability})")


_REMEDY = "do not train here: updates would not arrive. Look at the rollout engine's log and its supported versions"

CHECKS: tuple[Check, ...] = (
    Check(
        "weight-sync.full",
        "weight-sync",
        "An update of all trained weights arrives bit for bit, and the engine's output changes when, and only when, "
        "the weights did.",
        "quick",
        _full,
        _REMEDY,
    ),
    Check(
        "weight-sync.lora",
        "weight-sync",
        "An update of a LoRA arrives bit for bit, binds every module it should, and shows in the engine's output.",
        "quick",
        _lora,
        _REMEDY,
    ),
    Check(
        "weight-sync.refused",
        "weight-sync",
        "A damaged update is refused whole, and the engine stays paused at its old version.",
        "quick",
        _refused,
        "do not train here: a half-updated policy could be served. Report the engine's version",
    ),
)
