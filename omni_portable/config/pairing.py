"""Do the parts of a run fit together? Each plugin's spec declares what it can do; nothing is loaded to find out.

Capabilities that are read here, all optional (a part that does not declare one is not restricted by it):

* model: 'kinds', 'artifacts'
* algorithm: 'kind', 'needs_log_probs', 'min_group_size', 'step_kinds', 'needs_teacher', 'needs_rollout'
* train and rollout engine: 'kinds' (of models they run), 'lora' (False: full weights only), 'step_kinds';
  'given_samples' (a rollout engine that draws none); 'fake_score' (a train engine that can train one)
* scorer: 'artifacts'
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from omni_portable.config.convert import Source
from omni_portable.config.kinds import ALGORITHM_KINDS
from omni_portable.config.plugins import gives_samples, plugin_spec
from omni_portable.config.schema import RunConfig
from omni_portable.config.teachers import check_teachers
from omni_portable.contracts.errors import CapabilityError, ConfigError
from omni_portable.contracts.registry import PluginSpec


def check_pairs(config: RunConfig, algorithm: PluginSpec, options: Any, source: Source) -> None:
    """Check algorithm x model x engines.

    Args:
        algorithm: the algorithm's spec; `options` its options object.

    Raises:
        CapabilityError: two parts that do not fit; names both keys and what would fit.
    """
    model = plugin_spec("model", config.model.family, "model.family")
    _check_kinds(config, algorithm, model)
    _check_group_size(config, algorithm)
    _check_lora(config, algorithm)
    check_teachers(config, algorithm, options, source)
    _check_distillation(config, algorithm, options, model)
    _check_correction(config, algorithm)
    _check_temperature(config, algorithm)
    _check_step_kind(config, algorithm, options)


def _check_kinds(config: RunConfig, algorithm: PluginSpec, model: PluginSpec) -> None:
    kind = algorithm.capabilities.get("kind")
    wanted = ALGORITHM_KINDS.get(str(kind))
    if wanted is None:
        return
    offered = model.capabilities.get("kinds")
    if offered is not None and wanted not in offered:
        raise CapabilityError(
            f"algorithm.name={algorithm.name} trains {wanted} models, but model.family={model.name} is "
            f"{_listed(offered)}"
        )
    for key, role, name in _engines(config):
        kinds = plugin_spec(role, name, key).capabilities.get("kinds")
        if kinds is not None and wanted not in kinds:
            raise CapabilityError(f"{key}={name} runs {_listed(kinds)} models, but the recipe trains a {wanted} model")


def _engines(config: RunConfig) -> Iterable[tuple[str, str, str]]:
    yield "rollout.engine", "rollout_engine", config.rollout.engine
    yield "actor.engine", "train_engine", config.actor.engine


def _check_group_size(config: RunConfig, algorithm: PluginSpec) -> None:
    least = int(algorithm.capabilities.get("min_group_size", 1))
    if config.rollout.n < least:
        raise CapabilityError(
            f"rollout.n={config.rollout.n}: algorithm '{algorithm.name}' compares the samples of one prompt and needs "
            f"at least {least} of them",
            remedy=f"set rollout.n={least} or more",
        )


def _check_lora(config: RunConfig, algorithm: PluginSpec) -> None:
    lora = config.model.lora
    if not lora.rank:
        if lora.targets or lora.alpha or lora.dropout:
            raise ConfigError(
                "model.lora has settings, but model.lora.rank=0 trains all weights", remedy="set model.lora.rank=32"
            )
        return
    for key, role, name in _engines(config):
        if plugin_spec(role, name, key).capabilities.get("lora") is False:
            raise CapabilityError(f"model.lora.rank={lora.rank}: {key}={name} trains or serves full weights only")
    if lora.dropout and algorithm.capabilities.get("needs_log_probs"):
        raise CapabilityError(
            f"model.lora.dropout={lora.dropout}: algorithm '{algorithm.name}' takes ratios of two forward passes, "
            "which dropout makes different",
            remedy="set model.lora.dropout=0",
        )


def _check_correction(config: RunConfig, algorithm: PluginSpec) -> None:
    correction = config.rollout_correction
    if correction.mode == "off":
        if correction.importance != "off" or correction.reject:
            raise ConfigError(
                "rollout_correction has settings, but rollout_correction.mode=off ignores them",
                remedy="set rollout_correction.mode",
                choices=("decoupled", "bypass"),
            )
    elif not algorithm.capabilities.get("needs_log_probs"):
        raise CapabilityError(
            f"rollout_correction.mode={correction.mode}: algorithm '{algorithm.name}' takes no ratios to correct",
            remedy="set rollout_correction.mode=off",
        )
    if correction.mode == "bypass" and correction.importance != "off":
        raise ConfigError(
            f"rollout_correction.importance={correction.importance}: mode 'bypass' takes ratios against the rollout "
            "itself, so there is nothing left to weigh",
            remedy="set rollout_correction.importance=off, or mode=decoupled",
        )


def _check_temperature(config: RunConfig, algorithm: PluginSpec) -> None:
    """Samples of one prompt that are all alike teach nothing."""
    if algorithm.capabilities.get("kind") == "token" and config.rollout.temperature == 0 and not config.data.targets:
        raise CapabilityError(
            f"rollout.temperature=0: every response to a prompt would be the same, and algorithm '{algorithm.name}' "
            "learns from their differences",
            remedy="set rollout.temperature=1; validation has its own, rollout.validation_temperature",
        )


def _check_distillation(config: RunConfig, algorithm: PluginSpec, options: Any, model: PluginSpec) -> None:
    """What training on the policy's own steps, judged by other networks, asks of the parts."""
    if algorithm.capabilities.get("needs_rollout") and gives_samples(config):
        raise CapabilityError(
            f"algorithm '{algorithm.name}' trains the steps of its own sampling, but "
            f"rollout.engine={config.rollout.engine} takes samples from the dataset",
            remedy="set rollout.engine=native",
        )
    requires = getattr(options, "requires", None)
    train = plugin_spec("train_engine", config.actor.engine, "actor.engine")
    if callable(requires) and requires().fake_score and not train.capabilities.get("fake_score"):
        raise CapabilityError(
            f"algorithm '{algorithm.name}' trains a fake score network beside the policy, which "
            f"actor.engine={train.name} cannot",
            remedy="set actor.engine=single",
        )
    guidance = getattr(options, "teacher_guidance_scale", 1.0)
    if guidance != 1.0 and model.capabilities.get("guidance") is False:
        raise CapabilityError(
            f"algorithm.teacher_guidance_scale={guidance:g}: model family '{model.name}' has no classifier-free "
            "guidance",
            remedy="set algorithm.teacher_guidance_scale=1",
        )


def _check_step_kind(config: RunConfig, algorithm: PluginSpec, options: Any) -> None:
    """The kernel and noise level an algorithm's options name, where it has such options."""
    kind = getattr(options, "step_kind", None)
    if kind is not None:
        parts = [(algorithm, "algorithm.name")]
        parts.append((plugin_spec("rollout_engine", config.rollout.engine, "rollout.engine"), "rollout.engine"))
        for part, key in parts:
            kinds = part.capabilities.get("step_kinds")
            if kinds is not None and kind not in kinds:
                raise CapabilityError(
                    f"algorithm.step_kind={kind} cannot be used with {key}={part.name}", choices=sorted(kinds)
                )
    noise = getattr(options, "noise_level", None)
    if noise is not None and algorithm.capabilities.get("needs_log_probs") and not 0 < noise < math.inf:
        raise CapabilityError(
            f"algorithm.noise_level={noise:g}: without noise a step has no log-prob, which algorithm "
            f"'{algorithm.name}' needs",
            remedy="set algorithm.noise_level above 0",
        )


def _listed(kinds: Iterable[str]) -> str:
    return " and ".join(sorted(kinds))
