"""Does the device answer what is asked of it, and do its tables say the same as the device itself?"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from typing import get_args

from omni_portable.conformance.check import Check, Measurement, Outcome
from omni_portable.conformance.context import Context
from omni_portable.contracts import registry
from omni_portable.contracts.device import AttentionRequest, Component, Device, StaticProfile
from omni_portable.contracts.errors import AttentionUnavailable

ROLES = ("local", "actor", "rollout", "reward")
UNKNOWN = ("", "unknown", "none", "?")


def _device(context: Context) -> Outcome:
    """Every question of the device protocol, each with what makes its answer sound."""
    unsound = [name for name, sound in _questions(context.device).items() if not sound()]
    identity = context.device.identity()
    return Outcome(
        [
            Measurement("questions", len(_questions(context.device))),
            Measurement("unsound_answers", len(unsound), relation="==", threshold=0),
            Measurement("devices", identity.count),
            Measurement("memory", identity.memory_bytes, "bytes"),
        ],
        f"unsound: {', '.join(unsound)}" if unsound else "every question has a sound answer",
        {"model": identity.model, "driver": identity.driver},
    )


def _questions(device: Device) -> Mapping[str, Callable[[], bool]]:
    identity, capabilities = device.identity(), device.capabilities()
    return {
        "name": lambda: device.name in registry.names("device") and identity.name == device.name,
        "generation of the identity": lambda: identity.generation == device.generation,
        "model": lambda: identity.model.strip().lower() not in UNKNOWN,
        "count": lambda: identity.count >= 1,
        "memory": lambda: identity.memory_bytes > 0,
        "torch device": lambda: device.torch_device().type == device.torch_device_type,
        "default dtype": lambda: capabilities.default_dtype in capabilities.dtypes,
        "reason of the default dtype": lambda: bool(capabilities.default_dtype_reason.strip()),
        "features": lambda: all(isinstance(value, bool) for value in capabilities.features.values()),
        "weight channels": lambda: bool(capabilities.weight_channels),
        "collective backend": lambda: bool(device.collectives.backend),
        "available": lambda: device.available()[0] and bool(device.available()[1]),
        "random state": lambda: device.rng_state() is not None,
        "synchronize": lambda: _returns(device.synchronize),
    }


def _returns(call: Callable[[], object]) -> bool:
    call()
    return True


def _generation(context: Context) -> Outcome:
    device = context.device
    known = tuple(registry.spec("device", device.name).capabilities.get("generations", ()))
    is_known = device.generation in known if known else device.generation == ""
    return Outcome(
        [Measurement("generation_known", float(is_known), relation="==", threshold=1)],
        f"generation '{device.generation or 'none'}'; the device's tables hold {', '.join(known) or 'no generations'}",
        {"generation": device.generation or "none"},
    )


def _versions(context: Context) -> Outcome:
    identity = context.device.identity()
    found = {"driver": identity.driver, **identity.libraries}
    missing = [name for name, version in found.items() if version.strip().lower() in UNKNOWN]
    return Outcome(
        [
            Measurement("missing_versions", len(missing), relation="==", threshold=0),
            Measurement("libraries", len(identity.libraries), relation=">=", threshold=1),
        ],
        f"without a version: {', '.join(missing)}" if missing else f"{len(found)} versions read",
        found,
    )


def _profile(context: Context) -> Outcome:
    """Planning answers from tables; a table that promises more than the device has would plan what cannot run."""
    device = context.device
    profile = device.static_profile(device.generation)
    differences = [*_contradictions(device, profile), *_other_kernels(device, profile)]
    return Outcome(
        [Measurement("contradictions", len(differences), relation="==", threshold=0)],
        "; ".join(differences) or "the tables and the device say the same",
        {"evidence": profile.evidence},
    )


def _contradictions(device: Device, profile: StaticProfile) -> Iterator[str]:
    live, static = device.capabilities(), profile.capabilities
    pairs: tuple[tuple[str, object, object], ...] = (
        ("name", profile.name, device.name),
        ("generation", profile.generation, device.generation),
        ("torch device type", profile.torch_device_type, device.torch_device_type),
        ("collective backend", profile.collective_backend, device.collectives.backend),
        ("default dtype", static.default_dtype, live.default_dtype),
        ("dtypes", set(static.dtypes), set(live.dtypes)),
        ("weight channels", set(static.weight_channels), set(live.weight_channels)),
        ("names of features", set(static.features), set(live.features)),
    )
    for what, said, found in pairs:
        if said != found:
            yield f"{what}: {_shown(said)} by the tables, {_shown(found)} by the device"
    for feature, promised in static.features.items():
        if promised and not live.features.get(feature, False):
            yield f"the tables promise '{feature}', which the device does not have"


def _other_kernels(device: Device, profile: StaticProfile) -> Iterator[str]:
    """Components whose default kernel is not what planning says (one that is not installed is no contradiction)."""
    for component in get_args(Component):
        family = profile.default_attention.get(component)
        if family not in profile.attention_families:
            yield f"the default kernel of {component}, '{family}', is not among the families of the tables"
            continue
        try:
            choice = device.attention.select(AttentionRequest(component, device.capabilities().default_dtype))
        except AttentionUnavailable:
            continue
        if choice.family != family:
            yield f"default kernel of {component}: '{family}' by the tables, '{choice.family}' by the device"


def _shown(value: object) -> str:
    return ", ".join(sorted(value)) if isinstance(value, set) else repr(value)


def _environment(context: Context) -> Outcome:
    """Asking for variables must not set them, and two askings must agree."""
    before = dict(os.environ)
    wrong = []
    for role in ROLES:
        first, second = context.device.environment(role), context.device.environment(role)
        if first != second or not all(isinstance(part, str) for item in first.items() for part in item):
            wrong.append(role)
    changed = sorted(name for name in {*before, *os.environ} if before.get(name) != os.environ.get(name))
    return Outcome(
        [
            Measurement("variables_set_by_asking", len(changed), relation="==", threshold=0),
            Measurement("roles_with_unsound_answers", len(wrong), relation="==", threshold=0),
        ],
        f"changed: {', '.join(changed) or 'nothing'}; unsound: {', '.join(wrong) or 'none'}",
        {name: value for role in ROLES for name, value in context.device.environment(role).items()},
    )


CHECKS = (
    Check(
        "identity.device",
        "identity",
        "The device answers every question of its protocol soundly.",
        "quick",
        _device,
        "repair the driver's installation, or the device package where its answer is wrong",
    ),
    Check(
        "identity.generation",
        "identity",
        "The device's generation is one that its tables know.",
        "quick",
        _generation,
        "use a device whose generation is listed, or add the generation to the device's tables",
    ),
    Check(
        "identity.versions",
        "identity",
        "Driver and libraries tell their versions.",
        "quick",
        _versions,
        "run `omni-portable doctor`, which says what part of the stack is missing",
    ),
    Check(
        "identity.profile",
        "identity",
        "What planning reads from tables agrees with the live device.",
        "quick",
        _profile,
        "correct the device's static profile: plans made for this device do not hold",
    ),
    Check(
        "identity.environment",
        "identity",
        "The environment of a role is data: asking for it sets nothing.",
        "quick",
        _environment,
        "mend the device package: it must return variables, not set them",
    ),
)
