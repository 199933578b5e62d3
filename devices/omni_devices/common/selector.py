"""Chooses a kernel family from a device's table, and proves it; what cannot be served is refused, never replaced."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import PackageNotFoundError, version

from packaging.specifiers import SpecifierSet

from omni_devices.common.kernel_table import KernelRow, KernelTable, Names
from omni_devices.common.spelling import suggestion
from omni_portable.contracts.device import AttentionChoice, AttentionRequest, PackageNeed, VerifyResult
from omni_portable.contracts.errors import AttentionMismatch, AttentionUnavailable


def installed_version(distribution: str) -> str | None:
    """The version of an installed distribution, read from its metadata; nothing is imported."""
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


class TableAttention:
    """The attention selector of any device that has a table.

    Args:
        table: the device's kernels.
        generation: of the device, '' where it has none.
        torch_device_type: where kernels run when they are verified.
        lookup: distribution -> installed version or None; where it is None itself, packages are not looked at and a
            choice's `package` says what must be installed (planning).
    """

    def __init__(
        self,
        table: KernelTable,
        generation: str,
        torch_device_type: str,
        lookup: Callable[[str], str | None] | None = installed_version,
    ) -> None:
        self._table = table
        self._generation = generation
        self._torch_device_type = torch_device_type
        self._lookup = lookup

    def select(self, request: AttentionRequest, choice: str = "auto") -> AttentionChoice:
        """Both spellings of the family asked for; 'auto' is the table's default for the component.

        Raises:
            AttentionUnavailable: no such family here, not for this component, generation, dtype, shape or use, or a
                package is missing or of the wrong version. The message gives the install command and what may be
                chosen explicitly instead.
        """
        family = self._table.default(request.component, self._generation) if choice == "auto" else choice
        row, names = self._row(request, family)
        for refusal in refusals(row, names, request):
            raise self._unavailable(request, family, refusal, "name one of the choices, which all serve this request")
        for need in row.needs:
            self._check_package(request, family, need)
        why = (
            f"documented default of '{self._where()}' for {request.component}"
            if choice == "auto"
            else f"'{choice}' was asked for"
        )
        return AttentionChoice(
            component=request.component,
            family=family,
            actor=names.actor,
            actor_library=names.actor_library,
            rollout=names.rollout,
            package=", ".join(self._describe(need) for need in row.needs) or "nothing beyond torch",
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
        row, names = self._row(request, choice.family)
        for refusal in refusals(row, names, request):
            raise self._unavailable(request, choice.family, refusal, "verify with a request that the kernel serves")
        tolerance = TOLERANCES[request.dtype]
        errors = largest_errors(kernel(choice), request, shapes, device=self._torch_device_type)
        worst = larger(errors.forward, errors.backward or 0.0)
        kernel_name = f"attention '{choice.actor}' of {choice.actor_library} for {choice.component} in {request.dtype}"
        remedy = f"set device.attention.{choice.component} to another family, or report the kernel of {choice.package}"
        if not errors.repeatable:
            raise AttentionMismatch(
                f"{kernel_name} gave two results for one input, but a deterministic kernel was asked for",
                remedy=remedy,
                choices=self._table.offered(choice.component, self._generation),
            )
        if not worst <= tolerance:  # a NaN error must fail too
            raise AttentionMismatch(
                f"{kernel_name} differs from math attention by {worst:.3g} (forward {errors.forward:.3g}, backward "
                f"{errors.backward}), more than {tolerance:g}, at {errors.where}",
                remedy=remedy,
                choices=self._table.offered(choice.component, self._generation),
            )
        return VerifyResult(choice, errors.forward, errors.backward, tolerance, time.perf_counter() - started)

    def _where(self) -> str:
        return f"{self._table.device}:{self._generation}" if self._generation else self._table.device

    def _row(self, request: AttentionRequest, family: str) -> tuple[KernelRow, Names]:
        """The family's row and spellings for the component, or the error that says why there is none."""
        row = self._table.row(family, self._generation)
        if row is not None and request.component in row.names:
            return row, row.names[request.component]
        choices = self._choices(request)
        remedy = f"set device.attention.{request.component} to one of the choices"
        if row is not None:
            raise self._unavailable(request, family, f"{row.summary} is not offered for this component", remedy)
        generations = [one for row in self._table.rows if row.family == family for one in row.generations]
        if generations:
            raise self._unavailable(request, family, f"it needs one of {', '.join(generations)}", remedy)
        if family in self._table.elsewhere:
            raise self._unavailable(
                request,
                family,
                f"{self._table.elsewhere[family]}; no package adds one",
                f"{remedy}, or run on a device that offers '{family}'",
            )
        known = self._table.spelled(family)
        hint = f"write '{known}': '{family}' is a library's spelling of it" if known else suggestion(family, choices)
        raise self._unavailable(request, family, "no such kernel family", hint or remedy)

    def _check_package(self, request: AttentionRequest, family: str, need: PackageNeed) -> None:
        if self._lookup is None:
            return
        found = self._lookup(need.distribution)
        if found is None:
            problem = f"it needs {need.distribution}{need.specifier}, which is not installed"
        elif not SpecifierSet(need.specifier).contains(found, prereleases=True):
            problem = f"it needs {need.distribution}{need.specifier}, but {found} is installed"
        else:
            return
        raise self._unavailable(
            request, family, problem, f"{need.install}, or name one of the choices for device.attention"
        )

    def _describe(self, need: PackageNeed) -> str:
        found = self._lookup(need.distribution) if self._lookup else None
        return f"{need.distribution} {found}" if found else f"{need.distribution}{need.specifier}"

    def _choices(self, request: AttentionRequest) -> list[str]:
        """Families that serve this very request (packages aside, as those can be installed)."""
        serving = []
        for family in self._table.offered(request.component, self._generation):
            row = self._table.row(family, self._generation)
            if row is not None and not list(refusals(row, row.names[request.component], request)):
                serving.append(family)
        return serving

    def _unavailable(self, request: AttentionRequest, family: str, problem: str, remedy: str) -> AttentionUnavailable:
        return AttentionUnavailable(
            f"attention '{family}' for {request.component} on '{self._where()}': {problem}",
            remedy=remedy,
            choices=self._choices(request),
        )


def refusals(row: KernelRow, names: Names, request: AttentionRequest) -> Iterator[str]:
    """Why the row cannot serve the request; nothing where it can. Packages are not looked at."""
    dtypes = names.dtypes or row.dtypes
    if request.dtype not in dtypes:
        yield f"it does not run in {request.dtype}, only in {', '.join(dtypes)}"
    if request.head_dim is not None:
        if row.head_dim_max is not None and request.head_dim > row.head_dim_max:
            yield f"head_dim {request.head_dim} is above its limit of {row.head_dim_max}"
        if request.head_dim % row.head_dim_multiple:
            yield f"head_dim {request.head_dim} is no multiple of {row.head_dim_multiple}"
    masks = row.masks if names.masks is None else names.masks
    if request.mask not in masks:
        yield f"it takes no {request.mask} mask"
    if request.causal and not (row.causal if names.causal is None else names.causal):
        yield "it cannot be causal"
    if request.grouped_query and not row.grouped_query:
        yield "it has no grouped-query attention"
    if request.variable_length and not row.variable_length:
        yield "it takes no packed sequences of several lengths"
    if request.backward and not row.backward:
        yield "it has no backward pass, so it cannot serve a component that trains"
    if request.deterministic and not row.deterministic:
        yield "it is not deterministic"
