"""Tensors under the names, and in the layout, of VeOmni's own model classes, and back; bit for bit.

Its Qwen-Image, Wan and language models keep the names of diffusers and transformers (a thinker is called so where it is
part of a whole model). LTX-2.3 and MiniMax-H3 have the names of their original releases there; the latter fuses query,
key and value head by head: (q, k, v of head 0, q, k, v of head 1, ...).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from omni_portable.contracts.errors import CapabilityError
from omni_portable.models.minimax_h3.layout import LAYOUT as H3_LAYOUT

CLASSES = {
    "qwen_image": "QwenImageTransformer2DModel",
    "qwen_image_edit": "QwenImageTransformer2DModel",
    "wan22": "WanTransformer3DModel",
    "ltx2": "LTXVideoTransformerModel",
    "minimax_h3": "MiniMaxH3DiTModel",
    "qwen3": "qwen3",
    "qwen_vl": "qwen3_vl",
    "qwen3_omni": "qwen3_omni_moe",
}
"""Model family -> name in VeOmni's registry of models (Qwen2.5-VL, of the family 'qwen_vl', is 'qwen2_5_vl' there)."""

LTX = {
    "proj_in.": "patchify_proj.",
    "audio_proj_in.": "audio_patchify_proj.",
    "time_embed.": "adaln_single.",
    "audio_time_embed.": "audio_adaln_single.",
    "prompt_adaln.": "prompt_adaln_single.",
    "audio_prompt_adaln.": "audio_prompt_adaln_single.",
    "av_cross_attn_video_scale_shift.": "av_ca_video_scale_shift_adaln_single.",
    "av_cross_attn_audio_scale_shift.": "av_ca_audio_scale_shift_adaln_single.",
    "av_cross_attn_video_a2v_gate.": "av_ca_a2v_gate_adaln_single.",
    "av_cross_attn_audio_v2a_gate.": "av_ca_v2a_gate_adaln_single.",
}
"""Start of a name -> what stands for it in VeOmni."""
LTX_INSIDE = {
    ".norm_q.": ".q_norm.",
    ".norm_k.": ".k_norm.",
    ".video_a2v_cross_attn_scale_shift_table": ".scale_shift_table_a2v_ca_video",
    ".audio_a2v_cross_attn_scale_shift_table": ".scale_shift_table_a2v_ca_audio",
}
"""Part of a block's name -> what stands for it in VeOmni."""

H3_PREFIX, H3_FUSED = "dit.", ".qkv_proj.weight"
THINKER = "thinker."
TOWERS = ("visual.", "audio_tower.", "model.visual.", "talker.", "code2wav.")
"""Starts of names in a whole model that a language model does not have."""


@dataclass(frozen=True)
class _Renamed:
    """Names that differ and values that do not."""

    starts: Mapping[str, str]
    inside: Mapping[str, str]

    def own(self, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {self._name(name, self.starts, self.inside): tensor for name, tensor in tensors.items()}

    def canonical(self, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        starts, inside = ({v: k for k, v in one.items()} for one in (self.starts, self.inside))
        return {self._name(name, starts, inside): tensor for name, tensor in tensors.items()}

    @staticmethod
    def _name(name: str, starts: Mapping[str, str], inside: Mapping[str, str]) -> str:
        for start, other in starts.items():
            if name.startswith(start):
                return other + name.removeprefix(start)
        for part, other in inside.items():
            name = name.replace(part, other)
        return name


class _H3:
    """The original release's names, with heads in another order."""

    def own(self, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        fused = H3_LAYOUT.fuse(tensors.items())
        return {H3_PREFIX + name: _by_head(name, tensor, fused) for name, tensor in fused.items()}

    def canonical(self, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        plain = {name.removeprefix(H3_PREFIX): tensor for name, tensor in tensors.items()}
        return H3_LAYOUT.split((name, _by_part(name, tensor, plain)) for name, tensor in plain.items())


def _head(name: str, tensors: Mapping[str, torch.Tensor]) -> int:
    return tensors[name.replace(H3_FUSED, ".q_norm.weight")].shape[0]


def _by_head(name: str, tensor: torch.Tensor, tensors: Mapping[str, torch.Tensor]) -> torch.Tensor:
    if not name.endswith(H3_FUSED):
        return tensor
    rows, width = _head(name, tensors), tensor.shape[1]
    return tensor.reshape(3, -1, rows, width).transpose(0, 1).reshape(-1, width)


def _by_part(name: str, tensor: torch.Tensor, tensors: Mapping[str, torch.Tensor]) -> torch.Tensor:
    if not name.endswith(H3_FUSED):
        return tensor
    rows, width = _head(name, tensors), tensor.shape[1]
    return tensor.reshape(-1, 3, rows, width).transpose(0, 1).reshape(-1, width)


class _Same:
    """Canonical names and values."""

    def own(self, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return dict(tensors)

    def canonical(self, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        plain = {name.removeprefix(THINKER): tensor for name, tensor in tensors.items()}
        return {name: tensor for name, tensor in plain.items() if not name.startswith(TOWERS)}


_LAYOUTS: Mapping[str, _Renamed | _H3 | _Same] = {"ltx2": _Renamed(LTX, LTX_INSIDE), "minimax_h3": _H3()}


def own_tensors(family: str, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Canonical tensors as VeOmni's class of the family names and lays them out (all of a model's).

    Raises:
        CapabilityError: VeOmni has no class for the family.
    """
    check_family(family)
    return _LAYOUTS.get(family, _Same()).own(tensors)


def canonical_tensors(family: str, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Inverse of :func:`own_tensors`; towers of a whole multimodal model are left out."""
    check_family(family)
    return _LAYOUTS.get(family, _Same()).canonical(tensors)


def check_family(family: str) -> None:
    """Raise CapabilityError where VeOmni has no class of its own."""
    if family not in CLASSES:
        raise CapabilityError(
            f"VeOmni has no model class of its own for model.family={family}",
            remedy="leave actor.options.weights and actor.options.export_own out",
            choices=sorted(CLASSES),
        )
