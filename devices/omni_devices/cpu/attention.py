"""Chooses a kernel family for each component on the CPU and proves it; what cannot be served is refused."""

from __future__ import annotations

import time
from collections.abc import Sequence

from omni_devices.common.spelling import suggestion
from omni_devices.cpu import families, profile
from omni_portable.contracts.device import AttentionChoice, AttentionRequest, VerifyResult
from omni_portable.contracts.errors import AttentionMismatch, AttentionUnavailable


class CpuAttention:
    """The selector of the 'cpu' device."""

    def select(self, request: AttentionRequest, choice: str = "auto") -> AttentionChoice:
        """Both spellings of the family asked for; 'auto' is sdpa for every component.

        Raises:
            AttentionUnavailable: the family is not offered here or not for this component, or it cannot serve the
                request's dtype or its packed variable-length input.
        """
        family = families.DEFAULT if choice == "auto" else choice
        _check_family(request, family)
        _check_request(request, family)
        names = families.FAMILIES[family][request.component]
        why = (
            f"documented default of 'cpu' for {request.component}" if choice == "auto" else f"'{choice}' was asked for"
        )
        return AttentionChoice(
            component=request.component,
            family=family,
            actor=names.actor,
            actor_library=names.actor_library,
            rollout=names.rollout,
            package=profile.package_version("torch"),
            reason=f"{why}; {names.note}" if names.note else why,
        )

    def verify(
        self, choice: AttentionChoice, request: AttentionRequest, shapes: Sequence[tuple[int, int, int, int]]
    ) -> VerifyResult:
        """Run the actor's kernel, under its own name in its own library, against fp64 math attention.

        Args:
            shapes: (batch, heads, tokens, head_dim) each; at least one.

        Raises:
            AttentionMismatch: an output, or with `request.backward` a gradient, is off by more than the tolerance, or
                with `request.deterministic` two equal calls differ.
        """
        from omni_devices.common.attention_check import TOLERANCES, larger, largest_errors
        from omni_devices.common.library_kernels import kernel

        started = time.perf_counter()
        _check_family(request, choice.family)
        _check_request(request, choice.family)
        tolerance = TOLERANCES[request.dtype]
        errors = largest_errors(kernel(choice), request, shapes, device="cpu")
        worst = larger(errors.forward, errors.backward or 0.0)
        kernel_name = f"attention '{choice.actor}' of {choice.actor_library} for {choice.component} in {request.dtype}"
        remedy = f"set device.attention.{choice.component} to another family, or report the kernel of {choice.package}"
        if not errors.repeatable:
            raise AttentionMismatch(
                f"{kernel_name} gave two results for one input, but a deterministic kernel was asked for",
                remedy=remedy,
                choices=families.offered(choice.component),
            )
        if not worst <= tolerance:  # a NaN error must fail too
            raise AttentionMismatch(
                f"{kernel_name} differs from math attention by {worst:.3g} (forward {errors.forward:.3g}, backward "
                f"{errors.backward}), more than {tolerance:g}, at {errors.where}",
                remedy=remedy,
                choices=families.offered(choice.component),
            )
        return VerifyResult(choice, errors.forward, errors.backward, tolerance, time.perf_counter() - started)


def _check_family(request: AttentionRequest, family: str) -> None:
    choices = families.offered(request.component)
    if family in choices:
        return
    asked = f"attention '{family}' for {request.component} on 'cpu'"
    remedy = f"set device.attention.{request.component} to one of the choices"
    if family in families.FAMILIES:
        raise AttentionUnavailable(
            f"{asked}: diffusers' autoencoders call sdpa themselves and cannot be switched",
            remedy=remedy,
            choices=choices,
        )
    if family in families.ELSEWHERE:
        raise AttentionUnavailable(
            f"{asked}: {families.ELSEWHERE[family]}; no package adds one",
            remedy=f"{remedy}, or run on a device that offers '{family}'",
            choices=choices,
        )
    known = families.spelled(family)
    hint = f"write '{known}': '{family}' is a library's spelling of it" if known else suggestion(family, choices)
    raise AttentionUnavailable(f"{asked}: no such kernel family", remedy=hint or remedy, choices=choices)


def _check_request(request: AttentionRequest, family: str) -> None:
    dtypes = families.FAMILIES[family][request.component].dtypes
    if request.dtype not in dtypes:
        raise AttentionUnavailable(
            f"attention '{family}' for {request.component} on 'cpu' does not run in {request.dtype}",
            remedy="set device.dtype to one of the choices",
            choices=dtypes,
        )
    if request.variable_length:
        raise AttentionUnavailable(
            f"attention '{family}' for {request.component} on 'cpu' takes no packed sequences of several lengths",
            remedy="pad the sequences and mask the padding (mask='padding', variable_length=False)",
        )
