"""Flow-matching schedules, equal bit for bit to diffusers' FlowMatchEulerDiscreteScheduler (checked against 0.40.0).

Two details of that scheduler matter to the last bit and are kept: with trained spacing the static shift is applied
twice (once to the training sigmas, whose ends bound the spacing, once to the spaced sigmas), and sigmas given by the
caller are rounded to fp32 *before* shifting while trained spacing shifts in fp64. Its rounding may also leave the first
sigma a few 1e-7 beside 1. Torch-free.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from omni_portable.contracts.errors import ConfigError, ModelError
from omni_portable.contracts.rollout import Schedule

Spacing = Literal["trained", "uniform"]
TimeShift = Literal["exponential", "linear"]
Array = npt.NDArray[np.floating[Any]]

_SUPPORTED = "FlowMatchEulerDiscreteScheduler"
_REFUSED = ("invert_sigmas", "use_karras_sigmas", "use_exponential_sigmas", "use_beta_sigmas", "stochastic_sampling")


def flow_match_schedule(
    num_steps: int,
    *,
    shift: float = 1.0,
    mu: float | None = None,
    time_shift: TimeShift = "exponential",
    shift_terminal: float | None = None,
    spacing: Spacing = "trained",
    sigmas: Sequence[float] | None = None,
    num_train_timesteps: int = 1000,
) -> Schedule:
    """A schedule of `num_steps` steps from (about) 1 to 0.

    Args:
        shift: static shift, sigma -> shift sigma / (1 + (shift - 1) sigma).
        mu: dynamic shift instead of the static one (see :func:`dynamic_shift`), with the curve `time_shift`:
            'exponential' e^mu / (e^mu + 1/sigma - 1) or 'linear' mu / (mu + 1/sigma - 1).
        shift_terminal: stretch the sigmas so that the last one before 0 has this value.
        spacing: 'trained' from the largest to the smallest training sigma (SD3), or 'uniform' from 1 to 1/num_steps
            (Qwen-Image, FLUX).
        sigmas: explicit sigmas before shifting, without the final 0, instead of `spacing`.
        num_train_timesteps: timestep = sigma * num_train_timesteps.

    Raises:
        ConfigError: num_steps below 1, or settings whose sigmas do not decrease strictly from at most 1 to above 0.
    """
    if num_steps < 1:
        raise ConfigError(f"num_steps={num_steps}: a schedule needs at least one step", remedy="set num_steps >= 1")
    if shift <= 0.0:
        raise ConfigError(f"shift={shift} must be positive", remedy="1 means no shift; SD3 uses 3")
    values = _spaced(num_steps, spacing, sigmas, shift if mu is None else 1.0, num_train_timesteps)
    values = _static_shift(values, shift) if mu is None else _dynamic_shift(values, mu, time_shift)
    if shift_terminal:
        remaining = 1 - values
        values = 1 - remaining / (remaining[-1] / (1 - shift_terminal))
    final = np.append(values.astype(np.float32), np.float32(0.0))
    key = f"steps={num_steps} shift={shift if mu is None else f'{time_shift}(mu={mu})'} spacing={spacing}"
    _check(final, key)
    return Schedule(tuple(float(v) for v in final), float(num_train_timesteps), key)


def dynamic_shift(
    tokens: int,
    *,
    base_tokens: int = 256,
    max_tokens: int = 4096,
    base_shift: float = 0.5,
    max_shift: float = 1.15,
) -> float:
    """mu for a latent of `tokens` image tokens: the line through (base_tokens, base_shift), (max_tokens, max_shift)."""
    slope = (max_shift - base_shift) / (max_tokens - base_tokens)
    return tokens * slope + (base_shift - slope * base_tokens)


def schedule_from_config(
    config: Mapping[str, Any], num_steps: int, *, tokens: int | None = None, spacing: Spacing = "trained"
) -> Schedule:
    """The schedule that a model's `scheduler_config.json` describes.

    Args:
        config: contents of the file, of a FlowMatchEulerDiscreteScheduler.
        tokens: image tokens of the request, needed where the config asks for dynamic shifting.
        spacing: how the model's published pipeline spaces its sigmas.

    Raises:
        ModelError: a scheduler of another class, or an option whose sampling is not implemented.
    """
    name = config.get("_class_name", _SUPPORTED)
    if name != _SUPPORTED:
        raise ModelError(f"scheduler class '{name}' is no flow-matching Euler scheduler", choices=[_SUPPORTED])
    refused = [option for option in _REFUSED if config.get(option)]
    if refused:
        raise ModelError(
            f"scheduler options {refused} are not supported", remedy="set them to false in the model folder"
        )
    common: dict[str, Any] = {
        "shift_terminal": _number(config, "shift_terminal", None),
        "spacing": spacing,
        "num_train_timesteps": _number(config, "num_train_timesteps", 1000),
    }
    if not config.get("use_dynamic_shifting"):
        return flow_match_schedule(num_steps, shift=_number(config, "shift", 1.0), **common)
    if tokens is None:
        raise ModelError("this scheduler shifts by image size, but no token count was given", remedy="pass tokens=")
    mu = dynamic_shift(
        tokens,
        base_tokens=_number(config, "base_image_seq_len", 256),
        max_tokens=_number(config, "max_image_seq_len", 4096),
        base_shift=_number(config, "base_shift", 0.5),
        max_shift=_number(config, "max_shift", 1.15),
    )
    return flow_match_schedule(num_steps, mu=mu, time_shift=config.get("time_shift_type", "exponential"), **common)


def _number(config: Mapping[str, Any], key: str, default: Any) -> Any:
    """A finite number of a scheduler config (or null where that is the default); counts must be above 0."""
    value = config.get(key, default)
    if value is None and default is None:
        return None
    low = 0 if isinstance(default, int) else -math.inf
    if isinstance(value, bool) or not isinstance(value, int | float) or not low < value < math.inf:
        raise ModelError(
            f"scheduler option '{key}' is {value!r}, not a finite number" + (" above 0" if low == 0 else "")
        )
    return value


def _spaced(
    num_steps: int, spacing: Spacing, sigmas: Sequence[float] | None, train_shift: float, train_steps: int
) -> Array:
    if sigmas is not None:
        if len(sigmas) != num_steps:
            raise ConfigError(f"{len(sigmas)} sigmas were given for {num_steps} steps", remedy="leave out the final 0")
        return np.array(sigmas).astype(np.float32)
    if spacing == "uniform":
        return np.linspace(1.0, 1 / num_steps, num_steps).astype(np.float32)
    if spacing != "trained":
        raise ConfigError(f"unknown sigma spacing '{spacing}'", choices=("trained", "uniform"))
    ends = np.array([train_steps, 1], dtype=np.float32) / np.float32(train_steps)
    first, last = (float(v) for v in _static_shift(ends, train_shift))
    return np.linspace(first * train_steps, last * train_steps, num_steps) / train_steps


def _static_shift(sigmas: Array, shift: float) -> Array:
    return shift * sigmas / (1 + (shift - 1) * sigmas)


def _dynamic_shift(sigmas: Array, mu: float, curve: TimeShift) -> Array:
    if curve not in ("exponential", "linear"):
        raise ConfigError(f"unknown time shift '{curve}'", choices=("exponential", "linear"))
    strength = math.exp(mu) if curve == "exponential" else mu
    return strength / (strength + (1 / sigmas - 1))


def _check(sigmas: npt.NDArray[np.float32], key: str) -> None:
    falling = bool(np.all(np.diff(sigmas) < 0))
    if not (np.isfinite(sigmas).all() and falling and sigmas[0] <= 1.0 + 1e-6):
        raise ConfigError(
            f"the schedule ({key}) does not fall strictly from at most 1 to 0: {[float(v) for v in sigmas]}",
            remedy="use another shift or fewer steps",
        )
