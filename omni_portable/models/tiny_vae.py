"""A tiny `AutoencoderKL` with random weights, as SD3 and FLUX have one; weights follow torch's seed."""

from __future__ import annotations

from diffusers import AutoencoderKL


def tiny_kl_vae(latent_channels: int, blocks: int) -> AutoencoderKL:
    """An autoencoder that shrinks each side by 2 ** (blocks - 1)."""
    return AutoencoderKL(
        in_channels=3,
        out_channels=3,
        latent_channels=latent_channels,
        block_out_channels=(8,) * blocks,
        down_block_types=("DownEncoderBlock2D",) * blocks,
        up_block_types=("UpDecoderBlock2D",) * blocks,
        layers_per_block=1,
        norm_num_groups=4,
        sample_size=16,
        scaling_factor=1.5,
        shift_factor=0.06,
        use_quant_conv=False,
        use_post_quant_conv=False,
    )
