"""Copies of the trained tensors beside the current ones: the moving average, the old and the reference policy, and one
that is trained itself."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from omni_portable.contracts.errors import ConfigError


class PolicyCopy(torch.nn.Module):
    """Named fp32 tensors that sleep, wake, save and load as one; a module so that a sleep pool can hold it.

    Args:
        tensors: canonical name -> tensor; copied (they may be shards of one process).
    """

    def __init__(self, tensors: Mapping[str, torch.Tensor]) -> None:
        super().__init__()
        self._names = list(tensors)
        for index, tensor in enumerate(tensors.values()):  # buffer names may not hold dots
            self.register_buffer(f"tensor_{index}", tensor.detach().to(torch.float32, copy=True))

    def tensors(self) -> dict[str, torch.Tensor]:
        """The live tensors by canonical name."""
        return dict(zip(self._names, self.buffers(), strict=True))

    @torch.no_grad()
    def blend(self, tensors: Mapping[str, torch.Tensor], decay: float) -> None:
        """copy <- decay * copy + (1 - decay) * tensors; a decay of 0 copies exactly."""
        for name, own in self.tensors().items():
            if decay == 0.0:
                own.copy_(tensors[name])
            else:
                own.mul_(decay).add_(tensors[name], alpha=1.0 - decay)

    def load(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Set the copy bit for bit."""
        self.blend(tensors, 0.0)


class TrainedCopy(PolicyCopy):
    """A copy with a training of its own: its tensors are parameters."""

    def __init__(self, tensors: Mapping[str, torch.Tensor]) -> None:
        super().__init__({})
        self._names = list(tensors)
        for index, tensor in enumerate(tensors.values()):
            copy = tensor.detach().to(torch.float32, copy=True)
            self.register_parameter(f"tensor_{index}", torch.nn.Parameter(copy))

    def named(self) -> dict[str, torch.nn.Parameter]:
        """The parameters by canonical name."""
        return dict(zip(self._names, self.parameters(), strict=True))

    def tensors(self) -> dict[str, torch.Tensor]:
        return {name: parameter.detach() for name, parameter in self.named().items()}


class Ema(PolicyCopy):
    """Exponential moving average that starts at the initial weights: ema <- decay * ema + (1 - decay) * weights.

    Args:
        decay: in (0, 1).
    """

    def __init__(self, tensors: Mapping[str, torch.Tensor], decay: float) -> None:
        if not 0.0 < decay < 1.0:
            raise ConfigError(f"actor.ema_decay is {decay}; an average needs a decay between 0 and 1, both excluded")
        super().__init__(tensors)
        self.decay = decay

    def update(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Take one optimizer step's weights into the average."""
        self.blend(tensors, self.decay)
