"""Attention kernels: chosen per component, proved on the recipe's shapes, refused where they are unknown."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import get_args

from omni_portable.conformance.check import Check, Measurement, NotRun, Outcome
from omni_portable.conformance.context import Context
from omni_portable.contracts.device import AttentionChoice, AttentionRequest, Component
from omni_portable.contracts.errors import AttentionMismatch, AttentionUnavailable
from omni_portable.trainer.preflight import attention_shape

UNKNOWN_FAMILY = "no_such_kernel"
ODD_TOKENS = 77
"""A second length: no kernel's tile divides it, so the ends of tiles are masked."""
Shapes = list[tuple[int, int, int, int]]


def _component(component: Component) -> Callable[[Context], Outcome]:
    """Select and verify, forward and where it trains backward, what the recipe's model asks for."""

    def run(context: Context) -> Outcome:
        requests = _requests(context, component)
        measured: list[Measurement] = []
        choice = context.model.load.attention[component]
        for request in requests:
            result = context.device.attention.verify(choice, request, _shapes(context, request))
            prefix = f"head_dim_{request.head_dim}." if len(requests) > 1 else ""
            limit = result.tolerance
            measured.append(Measurement(f"{prefix}forward_error", result.max_forward_error, "", "<=", limit))
            if result.max_backward_error is not None:
                measured.append(Measurement(f"{prefix}backward_error", result.max_backward_error, "", "<=", limit))
            measured.append(Measurement(f"{prefix}verification", result.seconds, "s"))
        return Outcome(measured, choice.reason, _facts(choice, requests))

    return run


def _requests(context: Context, component: Component) -> list[AttentionRequest]:
    found = [request for request in context.model.attention_requests if request.component == component]
    if not found:
        raise NotRun(f"the recipe's model has no {_spoken(component)} with attention")
    return found


def _shapes(context: Context, request: AttentionRequest) -> Shapes:
    batch, heads, tokens, head_dim = attention_shape(context.bare_adapter, context.config, request)
    return [(batch, heads, tokens, head_dim), (1, heads, ODD_TOKENS, head_dim)]


def _facts(choice: AttentionChoice, requests: Sequence[AttentionRequest]) -> dict[str, str]:
    return {
        "family": choice.family,
        "actor": f"{choice.actor} ({choice.actor_library})",
        "rollout": choice.rollout,
        "package": choice.package,
        "dtype": requests[0].dtype,
        "head_dims": ", ".join(str(request.head_dim) for request in requests),
    }


def _refusal(context: Context) -> Outcome:
    """An unknown family must end in the error that names what may be chosen, never in another kernel."""
    silent, unhelpful = [], []
    dtype = context.device.capabilities().default_dtype
    for component in get_args(Component):
        try:
            context.device.attention.select(AttentionRequest(component, dtype), UNKNOWN_FAMILY)
        except AttentionUnavailable as error:
            if not error.choices or UNKNOWN_FAMILY not in str(error) or component not in str(error):
                unhelpful.append(component)
        else:
            silent.append(component)
    return Outcome(
        [
            Measurement("components_that_accepted", len(silent), relation="==", threshold=0),
            Measurement("errors_without_choices", len(unhelpful), relation="==", threshold=0),
        ],
        f"asked for '{UNKNOWN_FAMILY}'; accepted by {', '.join(silent) or 'none'}",
    )


def _families(context: Context) -> Outcome:
    """Every family of the device's tables for every part of the recipe's model; what is not served is said to be."""
    measured: list[Measurement] = []
    facts: dict[str, str] = {}
    profile = context.device.static_profile(context.device.generation)
    for component in dict.fromkeys(request.component for request in context.model.attention_requests):
        for family in profile.attention_families:
            name = f"{component}.{family}"
            try:
                worst = max(_share(context, request, family) for request in _requests(context, component))
            except AttentionUnavailable as error:
                facts[name] = f"not available: {error.problem}"
                continue
            except AttentionMismatch as error:
                facts[name] = error.problem
                worst = math.inf
            measured.append(Measurement(f"{name}.share_of_tolerance", worst, "", "<=", 1))
    if not measured:
        raise NotRun("no kernel family of the device's tables is available here")
    return Outcome(measured, "families whose package is missing, or which cannot serve a part, are in the facts", facts)


def _share(context: Context, request: AttentionRequest, family: str) -> float:
    choice = context.device.attention.select(request, family)
    result = context.device.attention.verify(choice, request, _shapes(context, request))
    return max(result.max_forward_error, result.max_backward_error or 0.0) / result.tolerance


def _spoken(component: str) -> str:
    return "VAE" if component == "vae" else component.replace("_", " ")


COMPONENT_CHECKS = tuple(
    Check(
        f"attention.{component.replace('_', '-')}",
        "attention",
        f"The {_spoken(component)}'s kernel agrees with math attention on the recipe's shapes.",
        "quick",
        _component(component),
        f"set device.attention.{component} to another family, or install the version that the error names",
    )
    for component in get_args(Component)
)
CHECKS = (
    *COMPONENT_CHECKS,
    Check(
        "attention.refusal",
        "attention",
        "A kernel family that does not exist is refused with the choices there are.",
        "quick",
        _refusal,
        "mend the device's attention selector: it falls back silently, so that its choices cannot be trusted",
    ),
    Check(
        "attention.families",
        "attention",
        "Every kernel family that is offered and installed agrees with math attention.",
        "full",
        _families,
        "do not use the family that differs, and report it with the versions of this report",
    ),
)
