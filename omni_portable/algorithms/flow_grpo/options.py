"""Options of Flow-GRPO. Torch-free."""

from __future__ import annotations

from dataclasses import dataclass

from omni_portable.algorithms.options import StochasticOptions, require


@dataclass(frozen=True)
class FlowGRPOOptions(StochasticOptions):
    """Keys of `algorithm` for 'flow_grpo'."""

    clip_ratio: float = 1e-4
    """Ratios beyond 1 +- this are clipped; small because log-probs are means over latent elements."""

    def __post_init__(self) -> None:
        """Refuse a clip range that leaves nothing (`ConfigError`)."""
        super().__post_init__()
        require(0.0 < self.clip_ratio < 1.0, "clip_ratio", self.clip_ratio, "between 0 and 1")
