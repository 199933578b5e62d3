"""Checks of a typed configuration that need no hardware and no torch: values, plugins, and how they fit together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from omni_portable.config.assets import BUILTIN, check_source, packaged
from omni_portable.config.batches import check_batches
from omni_portable.config.convert import MISSING, Source, naming, suggest
from omni_portable.config.drawing import check_drawing
from omni_portable.config.kinds import check_kind_keys, check_kinds
from omni_portable.config.media import check_media
from omni_portable.config.modes import check_mode
from omni_portable.config.pairing import check_pairs
from omni_portable.config.parallel import check_parallel
from omni_portable.config.paths import user_path
from omni_portable.config.plugins import (
    algorithm_name,
    algorithm_options,
    declared_modality,
    engines_that_give,
    gives_samples,
    plugin_options,
    plugin_spec,
    scorer_options,
)
from omni_portable.config.rules import ATTENTION_COMPONENTS, WEIGHT, check_number, check_values
from omni_portable.config.schema import RunConfig
from omni_portable.contracts import registry
from omni_portable.contracts.errors import CapabilityError, ConfigError


def validate(config: RunConfig, source: Source | None = None) -> None:
    """Check a whole configuration.

    Raises:
        ConfigError: the first problem found; CapabilityError where two parts do not fit together.
    """
    source = source or Source()
    check_values(config, source)
    _check_given(config, source)
    check_kinds(config)
    check_kind_keys(config, source)
    check_batches(config, source)
    _check_device(config)
    _check_sections(config, source)
    _check_launcher(config, source)
    _check_scorers(config, source)
    algorithm = registry.spec("algorithm", algorithm_name(config))
    options = algorithm_options(config, source)
    check_pairs(config, algorithm, options, source)
    check_parallel(config, source)
    check_drawing(config, source)
    check_media(config, source)
    _check_algorithm_options(config, options)
    _check_trainer(config, source)
    check_source(config.model.path, family=config.model.family)
    for name, teacher in config.model.teachers.items():
        check_source(teacher.path, f"model.teachers.{name}.path", config.model.family)
    for path in (config.data.train, config.data.validation):
        if path.startswith(BUILTIN):
            packaged(path.removeprefix(BUILTIN))


def _check_given(config: RunConfig, source: Source) -> None:
    for key, value in (("model.path", config.model.path), ("data.train", config.data.train)):
        if not value.strip():
            raise ConfigError(f"{source.describe(key, value)}: '{key}' is empty", remedy=f"write {key}=PATH")


def _check_device(config: RunConfig) -> None:
    name, _, generation = config.device.name.partition(":")
    if name != "auto":
        spec = plugin_spec("device", name, "device.name")
        known = spec.capabilities.get("generations")
        if generation and known is not None and generation not in known:
            raise ConfigError(
                f"device.name={config.device.name}: device '{name}' has no generation '{generation}'",
                remedy=suggest(generation, known) or f"write device.name={name}",
                choices=[f"{name}:{each}" for each in known],
            )
    elif generation:
        raise ConfigError(f"device.name={config.device.name}: 'auto' takes no generation", remedy="name the device")
    for component in config.device.attention:
        if component not in ATTENTION_COMPONENTS:
            raise ConfigError(
                f"device.attention names the unknown component '{component}'",
                remedy=suggest(component, ATTENTION_COMPONENTS),
                choices=ATTENTION_COMPONENTS,
            )


def _check_sections(config: RunConfig, source: Source) -> None:
    """Every section that names a plugin: the plugin exists, and its options have its keys and types."""
    sections: tuple[tuple[str, str, str, Mapping[str, Any]], ...] = (
        ("model", "model.family", config.model.family, config.model.options),
        ("rollout_engine", "rollout.engine", config.rollout.engine, config.rollout.options),
        ("train_engine", "actor.engine", config.actor.engine, config.actor.options),
        ("data_plane", "dataplane.name", config.dataplane.name, config.dataplane.options),
        ("launcher", "launcher.name", config.launcher.name, config.launcher.options),
    )
    for kind, key, name, options in sections:
        plugin_spec(kind, name, key)
        built = plugin_options(kind, name, options, key=f"{key.rpartition('.')[0]}.options", source=source)
        if kind == "data_plane" and hasattr(built, "check"):
            built.check(config)
    for name in config.trainer.loggers:
        plugin_spec("logger", name, "trainer.loggers")


def _spreads(launcher: str) -> bool:
    return bool(registry.spec("launcher", launcher).capabilities.get("multi_process"))


def _check_launcher(config: RunConfig, source: Source) -> None:
    """What the launcher can place; its options may have `check(config)`, which raises where they do not fit."""
    name, replicas = config.launcher.name, config.rollout.replicas
    if replicas > 1 and plugin_spec("launcher", name, "launcher.name").capabilities.get("multi_process") is False:
        raise CapabilityError(
            f"{source.describe('rollout.replicas', replicas)}: launcher.name={name} runs every role in one process, "
            "where replicas would only share one device",
            remedy="set rollout.replicas=1, or a launcher of several processes",
            choices=[n for n in registry.names("launcher") if _spreads(n)],
        )
    options = plugin_options("launcher", name, config.launcher.options, key="launcher.options", source=source)
    if hasattr(options, "check"):
        options.check(config)


def _check_scorers(config: RunConfig, source: Source) -> None:
    scorers = config.reward.scorers
    if not scorers:
        raise ConfigError(
            "reward.scorers is empty: there is nothing to optimise",
            remedy="name at least one, e.g. reward.scorers.main={kind: KIND}",
            choices=registry.names("reward"),
        )
    weights = [_check_scorer(config, name, section, source) for name, section in scorers.items()]
    if not any(weights):
        raise ConfigError("all weights under reward.scorers are 0: there is nothing to optimise")


def _check_scorer(config: RunConfig, name: str, section: Any, source: Source) -> float:
    """Check one scorer and return its weight."""
    key = f"reward.scorers.{name}"
    if not isinstance(section, Mapping):
        raise ConfigError(
            f"{source.describe(key, section)}: a scorer is a section", remedy=f"write {key}={{kind: KIND}}"
        )
    kind = section.get("kind", MISSING)
    if kind == MISSING:
        raise ConfigError(f"'{key}.kind' has no value", remedy="name a scorer", choices=registry.names("reward"))
    spec = plugin_spec("reward", kind, f"{key}.kind")
    weight = section.get("weight", 1.0)
    if isinstance(weight, bool) or not isinstance(weight, (int, float)):
        raise ConfigError(f"{source.describe(f'{key}.weight', weight)}: '{key}.weight' must be a finite number")
    check_number(f"{key}.weight", weight, WEIGHT, source)
    engine = config.rollout.engine
    if weight and spec.capabilities.get("needs_given_samples") and not gives_samples(config):
        raise CapabilityError(
            f"{key}.kind={kind} scores samples that the dataset gives; rollout.engine={engine} draws its own",
            remedy="set rollout.engine=dataset, or use another scorer",
            choices=engines_that_give(),
        )
    _check_artifacts(config, key, spec.capabilities.get("artifacts"), scorer_options(config, name, source))
    return float(weight)


def _check_artifacts(config: RunConfig, key: str, wanted: Mapping[str, str] | None, options: Any) -> None:
    """What a scorer asks for must be something the model makes, of the modality the scorer reads."""
    produced = plugin_spec("model", config.model.family, "model.family").capabilities.get("artifacts")
    if wanted is None or produced is None:
        return
    for name, kind in wanted.items():
        artifact, modality = getattr(options, name, name), declared_modality(kind, options)  # options may say both
        if produced.get(artifact) != modality:
            raise CapabilityError(
                f"{key} needs the {modality} artifact '{artifact}', which model family '{config.model.family}' does "
                "not produce",
                choices=[f"{made} ({kind})" for made, kind in sorted(produced.items())],
            )


def _check_algorithm_options(config: RunConfig, options: Any) -> None:
    """Options that depend on the number of denoising steps (windows, step lists) check themselves.

    An options dataclass may have `steps(num_steps, seed)`, the stochastic steps of one rollout, `check(num_steps)`, and
    `check_validation(num_steps)` for the steps of validation samples; they raise where they do not fit.
    """
    num_steps, held = config.rollout.num_steps, config.validation.num_steps
    if held and config.data.validation and hasattr(options, "check_validation"):
        with naming(f"'algorithm' does not fit validation.num_steps={held}"):
            options.check_validation(held)
    with naming(f"'algorithm' does not fit rollout.num_steps={num_steps}"):
        for method, arguments in (("steps", (num_steps, 0)), ("check", (num_steps,))):
            if hasattr(options, method):
                getattr(options, method)(*arguments)


def _check_trainer(config: RunConfig, source: Source) -> None:
    trainer = config.trainer
    check_mode(config, source)
    if not trainer.loggers:
        raise ConfigError(
            f"{source.describe('trainer.loggers', trainer.loggers)}: nothing of the run would be recorded",
            remedy="set trainer.loggers=[jsonl], which the report is made from",
            choices=registry.names("logger"),
        )
    if len(set(trainer.loggers)) < len(trainer.loggers):
        raise ConfigError(f"trainer.loggers={trainer.loggers} names a logger twice", remedy="name each once")
    named = trainer.resume not in ("never", "auto")
    if named and not (trainer.resume and user_path(trainer.resume, "trainer.resume").is_dir()):
        raise ConfigError(
            f"{source.describe('trainer.resume', trainer.resume)}: '{trainer.resume}' is no checkpoint folder",
            remedy=suggest(trainer.resume, ("never", "auto")),
            choices=("never", "auto", "the path of a checkpoint folder"),
        )
