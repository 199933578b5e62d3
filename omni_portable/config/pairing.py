"""Do the parts of a run fit together? Each plugin's spec declares what it can do; nothing is loaded to find out.

Capabilities that are read here, all optional (a part that does not declare one is not restricted by it):

* model: 'guidance' (False: it has none)
* algorithm: 'kind', 'needs_log_probs', 'min_group_size', 'step_kinds', 'needs_teacher'; 'needs_rollout' (it trains the
  policy's own sampling), 'needs_given_samples' (it imitates samples, whatever their reward)
* train and rollout engine: 'families' (the only ones they run) and 'refused_families' (others, and why), 'lora' (False:
  full weights only), 'step_kinds'; 'given_samples' (a rollout engine that draws none); 'fake_score' (a train engine
  that can train one)

That they are of one kind is checked before, in `kinds`.
"""

from __future__ import annotations

import math
from typing import Any

from omni_portable.config.convert import Source
from omni_portable.config.correction import check_correction
from omni_portable.config.kinds import engines
from omni_portable.config.plugins import engines_that_give, gives_samples, plugin_spec
from omni_portable.config.schema import RunConfig
from omni_portable.config.teachers import check_teachers
from omni_portable.contracts import registry
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
    _check_families(config)
    _check_group_size(config, algorithm)
    _check_lora(config, algorithm, source)
    _check_given_samples(config, algorithm)
    check_teachers(config, algorithm, options, source)
    _check_distillation(config, algorithm, options, model)
    check_correction(config, algorithm, source)
    _check_temperature(config, algorithm)
    _check_step_kind(config, algorithm, options)


def _check_families(config: RunConfig) -> None:
    family = config.model.family
    for key, role, name in engines(config):
        capabilities = plugin_spec(role, name, key).capabilities
        families = capabilities.get("families")
        if families is not None and family not in families:
            reason = capabilities.get("refused_families", {}).get(family, "")
            raise CapabilityError(
                f"{key}={name} does not run model.family={family}" + (f": {reason}" if reason else ""),
                remedy=f"set another {key}, or one of these model.family",
                choices=sorted(families),
            )


def _check_group_size(config: RunConfig, algorithm: PluginSpec) -> None:
    least = int(algorithm.capabilities.get("min_group_size", 1))
    if config.rollout.n < least:
        raise CapabilityError(
            f"rollout.n={config.rollout.n}: algorithm '{algorithm.name}' compares the samples of one prompt and needs "
            f"at least {least} of them",
            remedy=f"set rollout.n={least} or more",
        )


def _check_lora(config: RunConfig, algorithm: PluginSpec, source: Source) -> None:
    lora = config.model.lora
    if not lora.rank:
        for name in ("path", "targets", "alpha", "dropout"):
            if value := getattr(lora, name):
                rank = "the rank that it was saved with" if name == "path" else "for example 32"
                raise ConfigError(
                    f"{source.describe(f'model.lora.{name}', value)}: model.lora.rank=0 trains all weights and ignores "
                    "it",
                    remedy=f"set model.lora.rank, {rank}, or remove model.lora.{name}",
                )
        return
    for key, role, name in engines(config):
        if plugin_spec(role, name, key).capabilities.get("lora") is False:
            raise CapabilityError(f"model.lora.rank={lora.rank}: {key}={name} trains or serves full weights only")
    if lora.dropout and algorithm.capabilities.get("needs_log_probs"):
        raise CapabilityError(
            f"model.lora.dropout={lora.dropout}: algorithm '{algorithm.name}' takes ratios of two forward passes, "
            "which dropout makes different",
            remedy="set model.lora.dropout=0",
        )


def _check_given_samples(config: RunConfig, algorithm: PluginSpec) -> None:
    """Imitating the policy's own samples would train it towards what it does already."""
    if algorithm.capabilities.get("needs_given_samples") and not gives_samples(config):
        raise CapabilityError(
            f"algorithm '{algorithm.name}' imitates samples, whatever their reward, but rollout.engine="
            f"{config.rollout.engine} would give it the policy's own",
            remedy="set rollout.engine=dataset, and data.targets to the fields that hold the samples",
            choices=engines_that_give(),
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
            remedy="set actor.engine to one that can",
            choices=[n for n in registry.names("train_engine") if _trains_fake(n)],
        )
    guidance = getattr(options, "teacher_guidance_scale", 1.0)
    if guidance != 1.0 and model.capabilities.get("guidance") is False:
        raise CapabilityError(
            f"algorithm.teacher_guidance_scale={guidance:g}: model family '{model.name}' has no classifier-free "
            "guidance",
            remedy="set algorithm.teacher_guidance_scale=1",
        )


def _trains_fake(engine: str) -> bool:
    return bool(registry.spec("train_engine", engine).capabilities.get("fake_score"))


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
