"""OmniNFT: DiffusionNFT over the streams (video, audio) of joint latents, each normalised by itself.

All means of DiffusionNFT (arXiv 2509.16117) are taken over the elements of one stream s at a time:

    L   = sum_s w_s L_s / sum_s w_s,    w_s from stream_weights
    L_s = c (r L+_s + (1 - r) L-_s) / beta + reference_kl_coef mean_s((v - v_ref)^2)
    L+-_s = mean_s(d^2) / max(mean_s|d|, adaptive_weight_min),    d = x_t - t v+- - clean

with v+ = beta v + (1 - beta) v_old, v- = (1 + beta) v_old - beta v, beta = mix_beta, c = advantage_clip, and r the
probability of being a good sample, one for all streams: r = clamp(A / (2 c) + 1/2, 0, 1) with the advantage
A = (reward - mean of the group) / (std of rewards + advantage_epsilon). Source: OmniNFT in VeRL-Omni v0.3.0. Loads
without torch.
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
