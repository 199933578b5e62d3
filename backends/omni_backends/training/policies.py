"""The policies beside the current one: which are kept, and how a module runs under another one for a while."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch

from omni_backends.training.ema import Ema, PolicyCopy, TrainedCopy
from omni_portable.contracts.algorithm import Requires
from omni_portable.contracts.errors import CapabilityError
from omni_portable.models.lora import lora_layers

Swap = Callable[[Mapping[str, torch.nn.Parameter], Mapping[str, torch.Tensor]], AbstractContextManager[None]]


class Policies:
    """The current policy and the copies that a run keeps of it.

    Args:
        module: the transformer; its parameters are the current policy.
        parameters: canonical name -> trainable parameter of the module.
        masters: canonical name -> fp32 master of each (the parameter itself where it is fp32).
        adapter: whether a LoRA is trained.
        base_is_reference: the reference policy is the base model without its LoRA, and needs no copy (a LoRA that
            starts from saved matrices is another policy than its base).
        requires: what the algorithm needs.
        ema_decay: 0 keeps no average.
        swap: lets the parameters stand for a copy's tensors for a while (as :func:`exchanged`).
    """

    def __init__(
        self,
        module: torch.nn.Module,
        parameters: Mapping[str, torch.nn.Parameter],
        masters: Mapping[str, torch.Tensor],
        *,
        adapter: bool,
        base_is_reference: bool,
        requires: Requires,
        ema_decay: float,
        swap: Swap | None = None,
    ) -> None:
        self._module, self._parameters, self._masters = module, parameters, masters
        self._base_is_reference = adapter and base_is_reference
        self._swap, self._stand_in = swap or swapped_in, swap or exchanged
        self._ema = Ema(masters, ema_decay) if ema_decay > 0 else None
        self.copies: dict[str, PolicyCopy] = {"ema": self._ema} if self._ema else {}
        if requires.old_policy:
            self.copies["old"] = PolicyCopy(masters)
        if requires.reference_policy and not self._base_is_reference:
            self.copies["reference"] = PolicyCopy(masters)
        self.fake = TrainedCopy(masters) if requires.fake_score else None
        if self.fake is not None:
            self.copies["fake"] = self.fake

    def after_step(self) -> None:
        """Take the weights of a finished optimizer step into the average, where one is kept."""
        if self._ema is not None:
            self._ema.update(self._masters)

    def update_old(self, decay: float) -> None:
        """old <- decay * old + (1 - decay) * current."""
        self._copy("old").blend(self._masters, decay)

    def running(self, policy: str) -> AbstractContextManager[None]:
        """Context in which the module's forward is that of `policy`; the caller is under no_grad.

        Raises:
            CapabilityError: this run keeps no such policy.
        """
        if policy == "current":
            return nullcontext()
        if policy == "reference" and self._base_is_reference:
            return lora_disabled(self._module)
        return self._swap(self._parameters, self._copy(policy).tensors())

    def standing_in(self, policy: str) -> AbstractContextManager[None]:
        """As :meth:`running`, for whole forward and backward passes: gradients gather where those of the current policy
        would, so there must be none of them meanwhile."""
        return self._stand_in(self._parameters, self._copy(policy).tensors())

    def tensors(self, policy: str) -> dict[str, torch.Tensor]:
        """Trainable tensors of `policy` in the parameters' dtypes, detached (of 'current': the live ones)."""
        if policy == "current":
            return {name: parameter.detach() for name, parameter in self._parameters.items()}
        copy = self._copy(policy).tensors()
        return {name: copy[name].to(parameter.dtype) for name, parameter in self._parameters.items()}

    def masters(self, policy: str) -> Mapping[str, torch.Tensor]:
        """The fp32 tensors behind `policy`: live masters of 'current', else the copy's."""
        return self._masters if policy == "current" else self._copy(policy).tensors()

    def _copy(self, policy: str) -> PolicyCopy:
        if policy not in self.copies:
            raise CapabilityError(
                f"this run keeps no '{policy}' policy of its own weights",
                remedy="'ema' needs actor.ema_decay > 0; the others are kept if the algorithm requires them",
                choices=("current", *self.copies),
            )
        return self.copies[policy]


@contextmanager
def swapped_in(parameters: Mapping[str, torch.nn.Parameter], tensors: Mapping[str, torch.Tensor]) -> Iterator[None]:
    """:func:`exchanged`, for forwards without gradient only."""
    _refuse_gradients("weights are swapped")
    with exchanged(parameters, tensors):
        yield


@contextmanager
def exchanged(parameters: Mapping[str, torch.nn.Parameter], tensors: Mapping[str, torch.Tensor]) -> Iterator[None]:
    """Let the parameters stand for other tensors of the same names, rounded to the parameters' dtypes.

    Storages are exchanged, not copied, so the parameters' own values come back bit for bit. A graph that was built
    outside must not be differentiated inside, nor the other way round.
    """
    own = {name: parameter.data for name, parameter in parameters.items()}
    try:
        for name, parameter in parameters.items():
            parameter.data = tensors[name].to(parameter.dtype)
        yield
    finally:
        for name, parameter in parameters.items():
            parameter.data = own[name]


@contextmanager
def lora_disabled(module: torch.nn.Module) -> Iterator[None]:
    """Run the base model alone. Only for use without gradients.

    peft freezes an adapter that it disables; which parameters require gradients is kept as it was, since what wraps the
    module may settle on first use what is trained.
    """
    _refuse_gradients("a LoRA is disabled")
    _enable_lora(module, False)
    try:
        yield
    finally:
        _enable_lora(module, True)


def _enable_lora(module: torch.nn.Module, enabled: bool) -> None:
    trained = [(parameter, parameter.requires_grad) for parameter in module.parameters()]
    for _, layer in lora_layers(module):
        layer.enable_adapters(enabled)
    for parameter, flag in trained:
        if parameter.requires_grad != flag:
            parameter.requires_grad_(flag)


def _refuse_gradients(what: str) -> None:
    if torch.is_grad_enabled():
        raise RuntimeError(f"{what} under torch.no_grad() only")
