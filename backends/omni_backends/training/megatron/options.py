"""Options of the engine; torch-free."""

from __future__ import annotations

from dataclasses import dataclass

from omni_portable.contracts.errors import ConfigError

LAYERS = ("megatron", "transformer_engine")


@dataclass(frozen=True)
class MegatronOptions:
    layers: str = "megatron"
    """'megatron': its own layers in torch, on every device; 'transformer_engine': those of that package, where it is
    installed."""

    def __post_init__(self) -> None:
        """Refuse names that are no layers."""
        if self.layers not in LAYERS:
            raise ConfigError(f"actor.options.layers='{self.layers}'", remedy="choose one of these", choices=LAYERS)
