"""Checks of `rollout_correction`: what its keys may be, and which of them mean something together. Torch-free."""

from __future__ import annotations

import math
from dataclasses import fields, replace

from omni_portable.config.convert import Source, show, suggest
from omni_portable.config.modes import SYNC
from omni_portable.config.plugins import algorithm_name, plugin_spec
from omni_portable.config.schema import RolloutCorrectionConfig, RunConfig
from omni_portable.contracts.errors import CapabilityError, ConfigError
from omni_portable.contracts.registry import PluginSpec

STATISTICS = ("mean_k1", "sum_k1", "mean_k2", "sum_k2", "max_k2", "mean_k3", "sum_k3", "max_k3")
"""What `rollout_correction.reject` may name: LEVEL_KIND, see :func:`parse_bounds`."""
_KEY = "rollout_correction"
_WEIGHTS = ("threshold", "lower", "normalize")
"""Keys that say how importance weights are made."""
_DEFAULTS = RolloutCorrectionConfig()


def effective(config: RunConfig) -> RolloutCorrectionConfig:
    """`rollout_correction` with mode 'auto' decided.

    Clipping bounds how far an update moves the policy. Of samples that an older policy drew, ratios against that one
    leave a narrow range before the update begins, and most of them would teach nothing. So where rollout runs ahead,
    ratios are taken against the actor before its update, and what it has moved since the samples were drawn becomes a
    truncated weight (the decoupled objective of Hilton et al. 2021, "Batch size-invariance for policy optimization").
    """
    correction = config.rollout_correction
    if correction.mode != "auto":
        return correction
    ahead = config.trainer.mode != SYNC and config.dataplane.max_staleness > 0
    spec = plugin_spec("algorithm", algorithm_name(config), "algorithm.name")
    if ahead and spec.capabilities.get("needs_log_probs"):
        return replace(correction, mode="decoupled", importance="step")
    return replace(correction, mode="off")


def parse_bounds(statistic: str, text: str) -> tuple[float, float]:
    """(low, high) of a statistic of log-ratios q, from a value of `rollout_correction.reject`.

    Args:
        statistic: one of :data:`STATISTICS`. KIND 'k1' is q itself and has bounds on exp(q): 'LOW_HIGH', or 'HIGH' for
            [1 / HIGH, HIGH]; they are returned as logarithms. 'k2' and 'k3' are at least 0 and have the bound 'HIGH'.

    Raises:
        ConfigError: an unknown statistic, or bounds that are no finite numbers, out of order, or that would reject
            samples on which both engines agree.
    """
    if statistic not in STATISTICS:
        raise ConfigError(
            f"{_KEY}.reject names '{statistic}'", remedy=suggest(statistic, STATISTICS), choices=STATISTICS
        )
    if statistic.endswith("_k1"):
        numbers = _numbers(text)
        low, high = (1.0 / numbers[0], numbers[0]) if len(numbers) == 1 and numbers[0] else (*numbers, 0.0, 0.0)[:2]
        if len(numbers) not in (1, 2) or not 0.0 < low <= 1.0 <= high or low == high:
            raise ConfigError(
                f"{_KEY}.reject.{statistic}={text} is no bound of a ratio, which is 1 where both engines agree",
                remedy=f"write LOW_HIGH with LOW below and HIGH above 1, in quotes: {_KEY}.reject={{{statistic}: "
                "'0.5_2'}; or HIGH alone, which stands for 1/HIGH_HIGH",
            )
        return math.log(low), math.log(high)
    numbers = _numbers(text)
    if len(numbers) != 1 or numbers[0] < 0.0:
        raise ConfigError(
            f"{_KEY}.reject.{statistic}={text} is no bound",
            remedy=f"write one number of at least 0, in quotes: {_KEY}.reject={{{statistic}: '0.01'}}",
        )
    return -math.inf, numbers[0]


def check_correction(config: RunConfig, algorithm: PluginSpec, source: Source) -> None:
    """Refuse settings that nothing would read, weights that are all 0, and an algorithm without ratios.

    Raises:
        ConfigError: names the keys and what to set; CapabilityError where the algorithm has no ratios to correct.
    """
    correction = config.rollout_correction
    if correction.mode == "auto":
        _refuse_ignored(correction, ("importance", *_WEIGHTS, "reject"), "mode=auto", "mode=decoupled", source)
        return
    for statistic, text in correction.reject.items():
        parse_bounds(statistic, text)
    if correction.mode == "off":
        _refuse_ignored(correction, ("importance", *_WEIGHTS, "reject"), "mode=off", "mode=decoupled", source)
        return
    if not algorithm.capabilities.get("needs_log_probs"):
        raise CapabilityError(
            f"{_KEY}.mode={correction.mode}: algorithm '{algorithm.name}' takes no ratios to correct",
            remedy=f"set {_KEY}.mode=off",
        )
    if correction.mode == "bypass" and correction.importance != "off":
        raise ConfigError(
            f"{_KEY}.importance={correction.importance}: mode 'bypass' takes ratios against the rollout itself, so "
            "there is nothing left to weigh",
            remedy=f"set {_KEY}.importance=off, or mode=decoupled",
        )
    if correction.importance == "off":
        remedy = "importance=step" if correction.mode == "decoupled" else "mode=decoupled and importance=step"
        _refuse_ignored(correction, _WEIGHTS, "importance=off", remedy, source)
    if correction.lower and correction.lower >= correction.threshold:
        raise ConfigError(
            f"{source.describe(f'{_KEY}.lower', correction.lower)}: it is not below {_KEY}.threshold="
            f"{correction.threshold:g}, so every weight but that one would be 0",
            remedy=f"set {_KEY}.lower below 1 and {_KEY}.threshold above 1",
        )


def _refuse_ignored(
    correction: RolloutCorrectionConfig, keys: tuple[str, ...], why: str, remedy: str, source: Source
) -> None:
    for field in fields(correction):
        value = getattr(correction, field.name)
        if field.name in keys and value != getattr(_DEFAULTS, field.name):
            raise ConfigError(
                f"{source.describe(f'{_KEY}.{field.name}', value)}: {_KEY}.{why} ignores it",
                remedy=f"remove it, or set {_KEY}.{remedy}",
            )


def _numbers(text: str) -> tuple[float, ...]:
    """The finite numbers of 'A' or 'A_B'; none where one of them is no number."""
    try:
        numbers = tuple(float(part) for part in show(text).split("_"))
    except ValueError:
        return ()
    return numbers if all(map(math.isfinite, numbers)) else ()
