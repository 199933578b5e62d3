"""Options of the engine; torch-free."""

from __future__ import annotations

from dataclasses import dataclass

from omni_portable.contracts.errors import ConfigError


@dataclass(frozen=True)
class VeOmniOptions:
    replicate: int = 1
    """Copies of the sharded weights (hybrid sharding): each is spread over `actor.world_size` / this many processes."""
    forward_prefetch: bool = True
    """Gather the next block's weights while one computes, where blocks hold parts of different precision."""
    weights: str = ""
    """Folder of safetensors in the layout of VeOmni's own model class, to start from instead of the model's folder."""
    export_own: bool = False
    """Exports also hold a folder `veomni` with the weights in that layout."""

    def __post_init__(self) -> None:
        """Refuse values that cannot be."""
        if self.replicate < 1:
            raise ConfigError(f"actor.options.replicate={self.replicate}", remedy="set it to 1 or more")
