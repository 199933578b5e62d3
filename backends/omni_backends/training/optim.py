"""AdamW over fp32 master weights, with warm-up and clipping, and its state as named tensors.

Where a parameter is fp32 it is its own master. Where it is narrower (full training in bf16) a separate fp32 master
holds what the optimizer updates, the parameter holds its rounding, and gradients are accumulated in fp32.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from omni_portable.config.schema import ActorConfig

SLOTS = ("exp_avg", "exp_avg_sq", "step")
"""Per-parameter state of AdamW; stored as '<slot>/<parameter name>'."""


class MasterOptimizer:
    """Owns the masters and the optimizer's state of named parameters.

    Args:
        parameters: canonical name -> parameter; the order is that of the state.
        config: the run's `actor` section.
    """

    def __init__(self, parameters: Mapping[str, torch.nn.Parameter], config: ActorConfig) -> None:
        self._config = config
        self._parameters = dict(parameters)
        self.masters: dict[str, torch.nn.Parameter] = {}
        for name, parameter in self._parameters.items():
            self.masters[name] = self._master(parameter)
        self.adamw = torch.optim.AdamW(
            list(self.masters.values()),
            lr=config.lr,
            betas=(config.beta1, config.beta2),
            eps=config.eps,
            weight_decay=config.weight_decay,
        )
        self.steps_done = 0

    def _master(self, parameter: torch.nn.Parameter) -> torch.nn.Parameter:
        """What the optimizer updates in place of a parameter."""
        return parameter if parameter.dtype == torch.float32 else _separate_master(parameter)

    @property
    def separate_masters(self) -> list[torch.nn.Parameter]:
        """Masters that are not the model's own parameters."""
        return [m for name, m in self.masters.items() if m is not self._parameters[name]]

    def learning_rate(self) -> float:
        """Of the next step: linear from lr / warmup_steps to lr over `warmup_steps` steps, constant after."""
        warmup = self._config.warmup_steps
        return self._config.lr * (min(1.0, (self.steps_done + 1) / warmup) if warmup > 0 else 1.0)

    def zero_grad(self) -> None:
        for name, master in self.masters.items():
            master.grad = None
            self._parameters[name].grad = None

    def gradient_norm(self) -> torch.Tensor:
        """Scalar L2 norm of all gradients, fp32, on the device."""
        return get_total_norm([m.grad for m in self.masters.values() if m.grad is not None])

    def step(self, norm: torch.Tensor) -> None:
        """Clip to `actor.grad_clip` (0: not at all) given the norm, update masters and parameters, drop gradients."""
        if self._config.grad_clip > 0:
            clip_grads_with_norm_(list(self.masters.values()), self._config.grad_clip, norm)
        for group in self.adamw.param_groups:
            group["lr"] = self.learning_rate()
        self.adamw.step()
        self.steps_done += 1
        self.publish()
        self.zero_grad()

    @torch.no_grad()
    def publish(self) -> None:
        """Round the masters into the parameters they stand for."""
        for name, master in self.masters.items():
            if master is not self._parameters[name]:
                self._parameters[name].copy_(master)

    @torch.no_grad()
    def load_masters(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Set all masters, and with them the parameters, to tensors of the same names and shapes."""
        for name, master in self.masters.items():
            master.copy_(tensors[name])
        self.publish()

    def state_tensors(self) -> dict[str, torch.Tensor]:
        """'<slot>/<name>' -> tensor for every parameter that was ever updated."""
        return {
            f"{slot}/{name}": self.adamw.state[master][slot]
            for name, master in self.masters.items()
            if master in self.adamw.state
            for slot in SLOTS
        }

    def expected_state(self, names: list[str]) -> dict[str, tuple[int, ...]]:
        """Keys and shapes of :meth:`state_tensors` once the named parameters were updated."""
        shapes = {name: tuple(self.masters[name].shape) for name in names}
        return {f"{slot}/{name}": () if slot == "step" else shape for name, shape in shapes.items() for slot in SLOTS}

    def updated_names(self) -> list[str]:
        """Parameters that have optimizer state (one without gradient, such as an unused branch, has none)."""
        return [name for name, master in self.masters.items() if master in self.adamw.state]

    def load_state(self, names: list[str], tensors: Mapping[str, torch.Tensor], steps_done: int) -> None:
        """Replace the optimizer's state by checked tensors; `step` counters stay on the CPU as AdamW keeps them."""
        self.zero_grad()
        self.adamw.state.clear()
        for name in names:
            master = self.masters[name]
            self.adamw.state[master] = {
                slot: tensors[f"{slot}/{name}"].clone().to("cpu" if slot == "step" else master.device) for slot in SLOTS
            }
        self.steps_done = steps_done


def _separate_master(parameter: torch.nn.Parameter) -> torch.nn.Parameter:
    """An fp32 copy that receives the parameter's gradients, which are released as soon as they are added."""
    master = torch.nn.Parameter(parameter.detach().float())

    def collect(_: torch.Tensor) -> None:
        if parameter.grad is not None:
            gradient = parameter.grad.float()
            master.grad = gradient if master.grad is None else master.grad.add_(gradient)
            parameter.grad = None

    parameter.register_post_accumulate_grad_hook(collect)
    return master
