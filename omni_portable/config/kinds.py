"""Which side of a model a recipe trains, and which keys mean something for it. Torch-free."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal, cast

from omni_portable.config.convert import Source
from omni_portable.config.plugins import algorithm_name, plugin_spec
from omni_portable.config.schema import RolloutConfig, RunConfig
from omni_portable.contracts import registry
from omni_portable.contracts.errors import CapabilityError, ConfigError

Kind = Literal["diffusion", "autoregressive"]

ALGORITHM_KINDS: dict[str, Kind] = {"diffusion": "diffusion", "token": "autoregressive"}
"""Kind of algorithm -> kind of model that it trains."""

ONLY_FOR: Mapping[Kind, tuple[str, ...]] = {
    "diffusion": ("num_steps", "height", "width", "num_frames", "frame_rate", "guidance_scale", "negative_prompt"),
    "autoregressive": ("max_new_tokens", "temperature", "top_p", "top_k", "stop", "validation_temperature"),
}
"""Kind of model -> keys of `rollout` that no other kind reads."""
_SAID: Mapping[Kind, str] = {"diffusion": "denoises", "autoregressive": "writes tokens"}


def trained_kind(config: RunConfig) -> Kind:
    """The kind of model that the algorithm trains; without an algorithm, the first kind that the family offers.

    A family that is not registered (its adapter was handed over by other means) is one of diffusion.
    """
    name = config.algorithm.get("name")
    if name in registry.names("algorithm"):
        kind = registry.spec("algorithm", name).capabilities.get("kind")
        if kind in ALGORITHM_KINDS:
            return ALGORITHM_KINDS[kind]
    if config.model.family not in registry.names("model"):
        return "diffusion"
    kinds = registry.spec("model", config.model.family).capabilities.get("kinds", ("diffusion",))
    return cast(Kind, kinds[0])


def engines(config: RunConfig) -> Iterable[tuple[str, str, str]]:
    """(key, kind of plugin, name) of the engines that run the model."""
    yield "rollout.engine", "rollout_engine", config.rollout.engine
    yield "actor.engine", "train_engine", config.actor.engine


def check_kinds(config: RunConfig) -> None:
    """Algorithm, model and engines must be of one kind. Asked first: keys that one of them does not have, and all that
    does not fit after a change of kind, are only what follows from it.

    Raises:
        CapabilityError: names both keys and what would fit.
    """
    algorithm = registry.spec("algorithm", algorithm_name(config))
    model = plugin_spec("model", config.model.family, "model.family")
    wanted = ALGORITHM_KINDS.get(str(algorithm.capabilities.get("kind")))
    if wanted is None:
        return
    offered = model.capabilities.get("kinds")
    if offered is not None and wanted not in offered:
        raise CapabilityError(
            f"algorithm.name={algorithm.name} trains {wanted} models, but model.family={model.name} is "
            f"{_listed(offered)}",
            remedy="change one of them, with its options; these algorithms train such a model",
            choices=[name for name in registry.names("algorithm") if _trains(name) in offered],
        )
    for key, role, name in engines(config):
        kinds = plugin_spec(role, name, key).capabilities.get("kinds")
        if kinds is not None and wanted not in kinds:
            article = "an" if wanted[0] in "aeiou" else "a"
            raise CapabilityError(
                f"{key}={name} runs {_listed(kinds)} models, but the recipe trains {article} {wanted} model",
                remedy=f"set {key} to one of the choices, or train a model of the other kind (algorithm.name, "
                "model.family)",
                choices=[other for other in registry.names(role) if _runs(role, other, wanted)],
            )


def check_kind_keys(config: RunConfig, source: Source) -> None:
    """Refuse keys of `rollout` and `validation` that the recipe's kind of model would ignore.

    Raises:
        ConfigError: names the key and what the model is.
    """
    kind, defaults = trained_kind(config), RolloutConfig()
    for other, keys in ONLY_FOR.items():
        for name in keys if other != kind else ():
            value = getattr(config.rollout, name)
            if value != getattr(defaults, name):
                raise ConfigError(
                    f"{source.describe(f'rollout.{name}', value)}: it means nothing for a model that {_SAID[kind]}",
                    remedy=f"remove rollout.{name}",
                )
    made = plugin_spec("model", config.model.family, "model.family").capabilities.get("artifacts")
    if kind == "diffusion" and made is not None and "video" not in made.values():
        _refuse_video(config, source)


def _refuse_video(config: RunConfig, source: Source) -> None:
    sizes = (
        ("rollout.num_frames", config.rollout.num_frames, 1),
        ("rollout.frame_rate", config.rollout.frame_rate, 0),
        ("validation.num_frames", config.validation.num_frames, 0),
    )
    for key, value, unset in sizes:
        if value not in (unset, 1 if key.endswith("num_frames") else 0):
            raise ConfigError(
                f"{source.describe(key, value)}: model family '{config.model.family}' draws no videos",
                remedy=f"set {key}={unset}",
            )


def _trains(algorithm: str) -> str | None:
    return ALGORITHM_KINDS.get(str(registry.spec("algorithm", algorithm).capabilities.get("kind")))


def _runs(role: str, name: str, wanted: str) -> bool:
    """Does this engine run models of a kind, and draw what it trains on? One that declares no kinds runs all."""
    capabilities = registry.spec(role, name).capabilities
    kinds = capabilities.get("kinds")
    return (kinds is None or wanted in kinds) and not capabilities.get("given_samples")


def _listed(kinds: Iterable[str]) -> str:
    return " and ".join(sorted(kinds))
