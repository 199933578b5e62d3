"""OmniNFT: DiffusionNFT over the streams (video, audio) of joint latents, each normalised by itself.

Loads without torch.

DiffusionNFT's self-normalised errors and means are taken over the elements of one stream s at a time, which gives L_s.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from omni_portable.algorithms.diffusion_nft import CAPABILITIES, NFTOptions
from omni_portable.algorithms.options import require
from omni_portable.contracts.registry import PluginSpec


@dataclass(frozen=True)
class OmniNFTOptions(NFTOptions):
    """Keys of `algorithm` for 'omni_nft': those of 'diffusion_nft', and weights of the streams."""

    stream_weights: dict[str, float] = field(default_factory=dict)
    """Weight of each stream's loss ('video', 'audio'); a stream that is left out has 1. Their sum does not matter."""

    def __post_init__(self) -> None:
        """Refuse negative weights (`ConfigError`)."""
        super().__post_init__()
        for name, weight in self.stream_weights.items():
            require(weight >= 0.0, f"stream_weights.{name}", weight, "0 or positive")


SPEC = PluginSpec(
    name="omni_nft",
    summary="OmniNFT: DiffusionNFT on joint video and audio latents, with one error and weight per stream",
    target="omni_portable.algorithms.omni_nft.algorithm:OmniNFT",
    options=OmniNFTOptions,
    capabilities=CAPABILITIES,
)
