"""Chooses a kernel family from a device's table, and proves it; what cannot be served is refused, never replaced."""

from __future__ import annotations

import time
from collections.abc import Sequence

from omni_devices.common import packages
from omni_devices.common.kernel_table import KernelRow, KernelTable, Names
from omni_devices.common.packages import Lookup, installed_version
from omni_devices.common.refusals import refusals
from omni_devices.common.spelling import suggestion
from omni_portable.contracts.device import AttentionChoice, AttentionRequest, PackageNeed, VerifyResult
from omni_portable.contracts.errors import AttentionMismatch, AttentionUnavailable


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
        lookup: Lookup | None = installed_version,
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
        self._refuse_request(row, names, request)
        for need in row.needs:
            self._refuse_package(request, family, need)
        return AttentionChoice(
            component=request.component,
            family=family,
            actor=names.actor,
            actor_library=names.actor_library,
            rollout=names.rollout,
            package=", ".join(packages.described(need, self._lookup) for need in row.needs or (packages.TORCH,)),
            reason=self._reason(request, choice, row, names),
        )

    def verify(
        self, choice: AttentionChoice, request: AttentionRequest, shapes: Sequence[tuple[int, int, int, int]]
    ) -> VerifyResult:
        """Run the actor's kernel, under its own name in its own library, against fp64 math attention.

        Args:
            shapes: (batch, heads, tokens, head_dim) each; at least one.

        Raises:
            AttentionUnavailable: the kernel cannot serve the request, the library cannot bring it, or it failed.
            AttentionMismatch: an output, or with `request.backward` a gradient, is off by more than the tolerance, or
                with `request.deterministic` two equal calls differ.
        """
        from omni_devices.common.attention_check import TOLERANCES, KernelFailed, larger, largest_errors
        from omni_devices.common.library_kernels import kernel

        row, names = self._row(request, choice.family)
        self._refuse_request(row, names, request)
        if request.dtype not in TOLERANCES:
            raise self._unavailable(
                request, choice.family, f"there is no proof for {request.dtype}", "", choices=tuple(TOLERANCES)
            )
        tolerance = TOLERANCES[request.dtype]
        run, started = kernel(choice), time.perf_counter()
        try:
            errors = largest_errors(run, request, shapes, device=self._torch_device_type)
        except KernelFailed as error:
            remedy = self._pick(request, choice.family) or f"report the kernel of {choice.package}"
            problem = f"it failed on {error}"
            raise self._unavailable(request, choice.family, problem, remedy) from error
        if not errors.repeatable:
            raise self._mismatch(
                choice, request, "gave two results for one input, but a deterministic kernel was asked for"
            )
        worst = larger(errors.forward, errors.backward or 0.0)
        if not worst <= tolerance:  # a NaN error must fail too
            raise self._mismatch(
                choice,
                request,
                f"differs from math attention by {worst:.3g} (forward {errors.forward:.3g}, backward "
                f"{errors.backward}), more than {tolerance:g}, at {errors.where}",
            )
        return VerifyResult(choice, errors.forward, errors.backward, tolerance, time.perf_counter() - started)

    def _where(self) -> str:
        return f"{self._table.device}:{self._generation}" if self._generation else self._table.device

    def _reason(self, request: AttentionRequest, choice: str, row: KernelRow, names: Names) -> str:
        parts = [
            f"documented default of '{self._where()}' for {request.component}"
            if choice == "auto"
            else f"'{choice}' was asked for"
        ]
        if names.note:
            parts.append(names.note)
        if row.rollout_needs:
            needs = ", ".join(f"{need.distribution}{need.specifier}" for need in row.rollout_needs)
            parts.append(f"a rollout engine with kernels of its own also needs {needs}")
        return "; ".join(parts)

    def _row(self, request: AttentionRequest, family: str) -> tuple[KernelRow, Names]:
        """The family's row and spellings for the component, or the error that says why there is none."""
        component = request.component
        remedy = self._pick(request, family) or "no other kernel of this device serves this request"
        row = self._table.row(family, self._generation)
        if row is not None and component in row.names:
            return row, row.names[component]
        if row is not None:
            why = row.withheld.get(component, f"{row.summary} is not offered for this component")
            raise self._unavailable(request, family, why, remedy)
        generations = [one for row in self._table.rows if row.family == family for one in row.generations]
        if generations:
            raise self._unavailable(request, family, f"it needs one of {', '.join(dict.fromkeys(generations))}", remedy)
        if family in self._table.elsewhere:
            why = f"{self._table.elsewhere[family]}; no package adds one"
            raise self._unavailable(request, family, why, f"{remedy}, or run on a device that offers '{family}'")
        meant = self._table.spelled(family, component, self._generation)
        hint = suggestion(family, self._table.offered(component, self._generation)) or remedy
        if meant:
            hint = f"write {' or '.join(map(repr, meant))}: '{family}' is a library's spelling of it"
        raise self._unavailable(request, family, "no such kernel family", hint)

    def _refuse_request(self, row: KernelRow, names: Names, request: AttentionRequest) -> None:
        found = refusals(row, names, request)
        if not found:
            return
        remedies = [self._pick(request, row.family), *(refusal.remedy for refusal in found)]
        raise self._unavailable(
            request,
            row.family,
            "; ".join(refusal.problem for refusal in found),
            ", or ".join(filter(None, remedies))
            or "no kernel of this device serves this request; change the request or the device",
        )

    def _refuse_package(self, request: AttentionRequest, family: str, need: PackageNeed) -> None:
        wrong = packages.problem(need, self._lookup) if self._lookup else ""
        if not wrong:
            return
        raise self._unavailable(
            request, family, wrong, ", or ".join(filter(None, (need.install, self._pick(request, family))))
        )

    def _pick(self, request: AttentionRequest, family: str) -> str:
        """The advice to choose another family, where there is one."""
        others = self._alternatives(request, family)
        return f"set device.attention.{request.component} to one of the choices" if others else ""

    def _alternatives(self, request: AttentionRequest, family: str) -> tuple[str, ...]:
        """Other families that would serve this very request now; where packages are not looked at, if installed."""
        serving = []
        for other in self._table.offered(request.component, self._generation):
            row = self._table.row(other, self._generation)
            if row is None or other == family or refusals(row, row.names[request.component], request):
                continue
            if not self._lookup or not any(packages.problem(need, self._lookup) for need in row.needs):
                serving.append(other)
        return tuple(serving)

    def _unavailable(
        self,
        request: AttentionRequest,
        family: str,
        problem: str,
        remedy: str,
        choices: tuple[str, ...] | None = None,
    ) -> AttentionUnavailable:
        return AttentionUnavailable(
            f"attention '{family}' for {request.component} on '{self._where()}': {problem}",
            remedy=remedy,
            choices=self._alternatives(request, family) if choices is None else choices,
        )

    def _mismatch(self, choice: AttentionChoice, request: AttentionRequest, problem: str) -> AttentionMismatch:
        return AttentionMismatch(
            f"attention '{choice.actor}' of {choice.actor_library} for {choice.component} in {request.dtype} {problem}",
            remedy=f"set device.attention.{choice.component} to another family, or report the kernel of "
            f"{choice.package}",
            choices=self._alternatives(request, choice.family),
        )
