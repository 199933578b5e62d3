"""The transformer's dtype, and the attention pair of each component, from a device's tables."""

from __future__ import annotations

from collections.abc import Sequence

from omni_portable.config.schema import RunConfig
from omni_portable.contracts.device import AttentionRequest
from omni_portable.contracts.errors import AttentionUnavailable
from omni_portable.planning.plan import AttentionPlan, Precision, Reason
from omni_portable.planning.target import Target


def plan_precision(config: RunConfig, target: Target) -> tuple[Precision, list[Reason]]:
    """What `device.dtype` means on the target; a reason where it has no such arithmetic."""
    capabilities = target.profile.capabilities
    asked = config.device.dtype
    if asked == "auto":
        why = f"documented default of '{target.where}': {capabilities.default_dtype_reason}"
        return Precision(capabilities.default_dtype, why, capabilities.dtypes), []
    precision = Precision(asked, f"device.dtype={asked} was asked for", capabilities.dtypes)
    if asked in capabilities.dtypes:
        return precision, []
    problem = f"device.dtype={asked} has no usable arithmetic on '{target.where}'"
    return precision, [Reason("device.dtype", problem, "set device.dtype to one of the choices", capabilities.dtypes)]


def plan_attention(
    config: RunConfig, target: Target, requests: Sequence[AttentionRequest]
) -> tuple[tuple[AttentionPlan, ...], list[Reason]]:
    """The pair for each request, and why one cannot be had."""
    components = list(dict.fromkeys(request.component for request in requests))
    reasons = [
        Reason(
            f"attention.{named}",
            f"device.attention names the component '{named}', which the model does not have",
            "remove it",
            tuple(components),
        )
        for named in config.device.attention
        if named not in components
    ]
    plans = []
    for request in requests:
        plan, refused = _choose(config, target, request)
        plans.append(plan)
        reasons += refused
    return tuple(plans), reasons


def _choose(config: RunConfig, target: Target, request: AttentionRequest) -> tuple[AttentionPlan, list[Reason]]:
    asked = AttentionPlan(request.component, request.head_dim, request.causal, request.mask)
    selector = target.profile.attention
    if selector is None:
        problem = f"device '{target.where}' has no attention table, so no kernel can be planned"
        return asked, [Reason(f"attention.{request.component}", problem)]
    try:
        choice = selector.select(request, config.device.attention.get(request.component, "auto"))
    except AttentionUnavailable as error:
        return asked, [Reason(f"attention.{request.component}", error.problem, error.remedy, error.choices)]
    return AttentionPlan(
        component=request.component,
        head_dim=request.head_dim,
        causal=request.causal,
        mask=request.mask,
        family=choice.family,
        actor=choice.actor,
        actor_library=choice.actor_library,
        rollout=choice.rollout,
        package=choice.package,
        reason=choice.reason,
    ), []
