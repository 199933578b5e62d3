"""Both experts of Wan 2.2 as one policy: the high-noise one draws the outlines, the low-noise one the details."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from omni_portable.contracts.errors import ConfigError

HIGH_NOISE, LOW_NOISE = "transformer", "transformer_2"
TRAINED = {"both": (HIGH_NOISE, LOW_NOISE), "high_noise": (HIGH_NOISE,), "low_noise": (LOW_NOISE,)}
"""Option `trained_expert` -> experts that train."""


class Experts(torch.nn.Module):
    """Two transformers whose parameters are told apart by the prefixes 'transformer.' and 'transformer_2.'.

    Args:
        transformer / transformer_2: high-noise and low-noise expert.
        trained: which of them train.
    """

    def __init__(self, transformer: torch.nn.Module, transformer_2: torch.nn.Module, trained: tuple[str, ...]) -> None:
        super().__init__()
        self.transformer, self.transformer_2 = transformer, transformer_2
        self._trained = trained
        for name in (HIGH_NOISE, LOW_NOISE):
            getattr(self, name).requires_grad_(name in trained)

    def requires_grad_(self, requires_grad: bool = True) -> Experts:
        """As of any module; all weights of one expert alone cannot be trained.

        Raises:
            ConfigError: gradients are asked for and only one expert trains.
        """
        if requires_grad and len(self._trained) == 1:
            raise ConfigError(
                "model.options.trained_expert leaves out one of two experts, but all weights are to be trained",
                remedy="set model.lora.rank above 0, or model.options.trained_expert=both",
            )
        super().requires_grad_(requires_grad)
        return self

    def forward(self, expert: str, **inputs: Any) -> torch.Tensor:
        """Prediction (B, C, T, H, W) of the expert called `expert`.

        Where gradients are recorded, that of an expert that does not train is a leaf: a loss on its steps can be
        differentiated like any other, and reaches no weight.
        """
        output: torch.Tensor = getattr(self, expert)(**inputs, return_dict=False)[0]
        if torch.is_grad_enabled() and not output.requires_grad:
            output.requires_grad_()
        return output

    def linear_layers(self, suffixes: tuple[str, ...]) -> tuple[str, ...]:
        """What LoRA targets select: the suffixes themselves where both experts train, else full names in the one."""
        if len(self._trained) == 2:
            return suffixes
        (expert,) = self._trained
        return tuple(
            f"{expert}.{name}"
            for name, _ in getattr(self, expert).named_modules()
            if any(name.endswith(f".{suffix}") for suffix in suffixes)
        )

    def enable_gradient_checkpointing(self) -> None:
        """Of both experts."""
        for name in (HIGH_NOISE, LOW_NOISE):
            getattr(self, name).enable_gradient_checkpointing()

    def save_pretrained(self, folder: str, **arguments: Any) -> None:
        """Each expert into the subfolder of its name, as in a diffusers folder."""
        for name in (HIGH_NOISE, LOW_NOISE):
            getattr(self, name).save_pretrained(str(Path(folder) / name), **arguments)
