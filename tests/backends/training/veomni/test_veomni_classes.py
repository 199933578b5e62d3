"""The layouts against VeOmni's real classes: names, shapes, and what the modules compute with the tensors."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers import QwenImageTransformer2DModel
from transformers import AutoConfig

from omni_backends.training.veomni.names import CLASSES, own_tensors
from omni_backends.training.veomni.requirements import check_installed
from tests.backends.training.veomni.tiny import h3, ltx, tiny_folder, wan
from tests.support.token_models import folder, load
from tests.support.vendor_packages import require_supported

require_supported(check_installed)


def shapes(tensors: Any) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in tensors.items()}


def own_class(family: str, architecture: str, name: str = "") -> Any:
    from veomni.models.loader import MODELING_REGISTRY

    return MODELING_REGISTRY[name or CLASSES[family]](architecture)


@pytest.fixture(scope="module")
def kernels() -> None:
    """Plain torch for every operator."""
    from veomni.arguments.arguments_types import OpsImplementationConfig
    from veomni.ops import apply_ops_config

    names = [field for field in OpsImplementationConfig.__dataclass_fields__ if field.endswith("_implementation")]
    chosen = dict.fromkeys(names, "eager") | {"attn_implementation": "sdpa", "qat_implementation": "none"}
    apply_ops_config(OpsImplementationConfig(**chosen))


@pytest.mark.parametrize(
    ("family", "name", "architecture"),
    [
        ("qwen3", "qwen3", "Qwen3ForCausalLM"),
        ("qwen_vl", "qwen3_vl", "Qwen3VLForConditionalGeneration"),
        ("qwen_vl/qwen2_5", "qwen2_5_vl", "Qwen2_5_VLForConditionalGeneration"),
        ("qwen3_omni", "qwen3_omni_moe", "Qwen3OmniMoeThinkerForConditionalGeneration"),
    ],
)
def test_language_models(kernels, family, name, architecture):
    ours = load(family, ("transformer",)).transformer.state_dict()
    config = AutoConfig.from_pretrained(folder(family))
    cls = own_class(family.partition("/")[0], architecture, name)
    config = config if isinstance(config, cls.config_class) else cls.config_class.from_dict(config.to_dict())
    config._attn_implementation = "sdpa"
    theirs = shapes(cls(config).state_dict())
    own = shapes(own_tensors(family.partition("/")[0], ours))
    assert own.items() <= theirs.items()
    assert all(".visual." in f".{more}" or "audio_tower." in more for more in theirs.keys() - own.keys())


def test_qwen_image_and_wan_are_diffusers_classes():
    """Their registration replaces forwards of diffusers classes, so the classes are looked at, not registered."""
    from veomni.models.diffusers.qwen_image.qwen_image_transformer.modeling_qwen_image_transformer import (
        QwenImageTransformer2DModel as TheirQwen,
    )
    from veomni.models.diffusers.wan_t2v.wan_transformer.modeling_wan_transformer import (
        WanTransformer3DModel as TheirWan,
    )

    qwen = QwenImageTransformer2DModel.from_pretrained(tiny_folder("qwen_image") / "transformer")
    for family, ours, theirs in (("qwen_image", qwen, TheirQwen), ("wan22", wan(), TheirWan)):
        accepted = {key: value for key, value in ours.config.items() if not key.startswith("_")}
        config = theirs.config_class(**accepted)
        config._attn_implementation = "eager"
        assert shapes(theirs(config).state_dict()) == shapes(own_tensors(family, ours.state_dict())), family


def their_ltx(ours: Any) -> Any:
    import veomni.models.diffusers.ltx2_3.ltx_core  # noqa: F401 - makes `ltx_core` importable
    from veomni.models.diffusers.ltx2_3.ltx_transformer.configuration_ltx2_3_transformer import (
        LTXVideoTransformerModelConfig,
    )
    from veomni.models.diffusers.ltx2_3.ltx_transformer.modeling_ltx2_3_transformer import LTXVideoTransformerModel

    same = (
        "in_channels", "out_channels", "num_attention_heads", "attention_head_dim", "num_layers", "cross_attention_dim",
        "caption_channels", "audio_num_attention_heads", "audio_attention_head_dim", "audio_in_channels",
        "audio_out_channels", "audio_cross_attention_dim",
    )  # fmt: skip
    config = LTXVideoTransformerModelConfig(
        **{name: getattr(ours.config, name) for name in same},
        apply_gated_attention=True,
        caption_proj_before_connector=True,
        cross_attention_adaln=True,
        with_audio=True,
        av_ca_timestep_scale_multiplier=1000,
        frequencies_precision="float64",
    )
    return LTXVideoTransformerModel._from_config(config).eval()


def test_ltx_computes_the_same():
    """Video and sound at one noise level (where they differ, the two libraries modulate their exchange differently)."""
    ours = ltx()
    theirs = their_ltx(ours)
    theirs.load_state_dict(own_tensors("ltx2", ours.state_dict()))  # strict: every name, every shape
    modality = sys.modules["ltx_core.model.transformer.modality"].Modality
    model = sys.modules["ltx_core.model.transformer.model"].LTXModel
    draw = torch.Generator().manual_seed(1)
    video, sound = torch.randn(1, 6, 8, generator=draw), torch.randn(1, 5, 8, generator=draw)
    seen, heard = torch.randn(1, 8, 32, generator=draw), torch.randn(1, 8, 16, generator=draw)
    start, begin = 10 * torch.rand(1, 3, 6, 1, generator=draw), 3 * torch.rand(1, 1, 5, 1, generator=draw)
    where, when = torch.cat([start, start + 1], -1), torch.cat([begin, begin + 0.1], -1)
    sigma = torch.tensor([0.7])
    with torch.no_grad():
        found = model.forward(
            theirs,
            modality(video, sigma, sigma[:, None].expand(1, 6), where, seen),
            modality(sound, sigma, sigma[:, None].expand(1, 5), when, heard),
            None,
        )
        expected = ours(
            hidden_states=video,
            audio_hidden_states=sound,
            encoder_hidden_states=seen,
            audio_encoder_hidden_states=heard,
            timestep=1000 * sigma[:, None].expand(1, 6),
            audio_timestep=1000 * sigma[:, None].expand(1, 5),
            sigma=1000 * sigma,
            audio_sigma=1000 * sigma,
            video_coords=where,
            audio_coords=when,
            return_dict=False,
        )
    for left, right in zip(found, expected, strict=True):
        torch.testing.assert_close(left, right, rtol=0, atol=2e-6)


def test_blocks_of_minimax_h3_compute_the_same():
    from veomni.models.diffusers.minimax_h3.minimax_h3_transformer.configuration_minimax_h3_transformer import (
        MiniMaxH3DiTModelConfig,
    )
    from veomni.models.diffusers.minimax_h3.minimax_h3_transformer.modeling_minimax_h3_transformer import (
        MiniMaxH3DiTModel,
    )

    ours = h3()
    told = ours.config
    theirs = MiniMaxH3DiTModel(
        MiniMaxH3DiTModelConfig(
            hidden_size=told.hidden_size,
            num_layers=told.num_layers,
            token_refiner_num_layers=told.num_refiner_layers,
            num_attention_heads=told.num_attention_heads,
            attention_head_dim=told.attention_head_dim,
            ffn_hidden_size=told.ffn_dim,
            latents_dim=told.in_channels,
            audio_latents_dim=told.audio_in_channels,
            patch_size=tuple(told.patch_size),
            text_dim=told.text_dim,
            timestep_input_dim=told.freq_dim,
            time_embed_hidden_size=told.time_embed_hidden_dim,
            time_embed_dim=told.time_embed_dim,
            adaln_out_features=18 * told.hidden_size,
            final_adaln_out_features=2 * told.hidden_size,
            rope_inv_freq_len=told.rope_freq_dim,
        )
    ).eval()
    theirs.load_state_dict(own_tensors("minimax_h3", ours.state_dict()))
    draw = torch.Generator().manual_seed(1)
    rows, times = torch.randn(10, 32, generator=draw), torch.randn(2, 16, generator=draw)
    indices, places = torch.randint(0, 6, (10,), generator=draw), torch.randint(0, 5, (10, 3), generator=draw)
    ends, angles = (0, 10), theirs.dit.rope(places[None])
    with torch.no_grad():
        refined = theirs.dit.token_refiner(rows, cu_seqlens=ends, max_seqlen=10)
        torch.testing.assert_close(refined, ours.token_refiner(rows[None])[0], rtol=0, atol=1e-6)
        for own, block in zip(ours.transformer_blocks, theirs.dit.blocks, strict=True):
            expected = own(rows[None], times, indices, ours.rope(places))[0]
            found = block(
                rows,
                t_emb=times,
                combined_indices=indices,
                rope_cos=angles.cos()[:, None],
                rope_sin=angles.sin()[:, None],
                cu_seqlens=ends,
                max_seqlen=10,
            )
            torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)


def test_a_bound_wan_forward_is_diffusers_forward():
    """Without a sequence group, VeOmni's replacement computes what it replaces."""
    from veomni.models.diffusers.wan_t2v.wan_transformer.modeling_wan_transformer import (
        WanTransformer3DModel_forward,
    )

    ours = wan()
    draw = torch.Generator().manual_seed(1)
    latents = torch.randn(1, ours.config.in_channels, 3, 4, 4, generator=draw)
    text = torch.randn(1, 5, ours.config.text_dim, generator=draw)
    with torch.no_grad():
        expected = ours(latents, torch.tensor([300.0]), text, return_dict=False)[0]
        found = WanTransformer3DModel_forward(ours, latents, torch.tensor([300.0]), text)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)
    assert Path(tiny_folder("wan22")).is_dir()
