"""vLLM-Omni's transformers behind the call of diffusers' ones, which the adapters make.

Most of them take the same arguments; a bridge says how one is built from the folder's config and what its call needs
beside. A family without a bridge is refused, never approximated.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import torch

from omni_backends.rollout.vllm_omni import SPEC
from omni_portable.contracts.errors import CapabilityError

Build = Callable[[type, Any, Mapping[str, Any]], torch.nn.Module]
Call = Callable[[torch.nn.Module, Mapping[str, Any]], tuple[torch.Tensor, ...]]


@dataclass(frozen=True)
class Bridge:
    """One family's transformer in vLLM-Omni 0.30.

    Args:
        module / name: where its class is; diffusers' class has the same name.
        build: (class, engine's configuration, the folder's config.json) -> module without weights.
        call: (module, diffusers' arguments) -> diffusers' output tuple.
    """

    module: str
    name: str
    build: Build
    call: Call

    def make(self, od_config: Any, config: Mapping[str, Any]) -> torch.nn.Module:
        """The engine's module, its weights not loaded; what diffusers keeps in float32 is so here, too."""
        module = self.build(getattr(import_module(self.module), self.name), od_config, config)
        keep_float32(module, getattr(import_module("diffusers"), self.name))
        return module


class EngineTransformer(torch.nn.Module):
    """The engine's transformer as the adapter calls it.

    Args:
        bridge: of the family.
        inner: the engine's module; only referred to (hence the tuple), it belongs to the pipeline.
    """

    def __init__(self, bridge: Bridge, inner: torch.nn.Module) -> None:
        super().__init__()
        self._bridge = bridge
        self._inner = (inner,)

    def forward(self, **arguments: Any) -> tuple[torch.Tensor, ...]:
        """As diffusers' transformer with return_dict=False."""
        arguments.pop("return_dict", None)
        return self._bridge.call(self._inner[0], arguments)


def keep_float32(module: torch.nn.Module, reference: Any) -> None:
    """Give parameters the actor's dtype: the parts that diffusers' class names keep float32 whatever the run's dtype.

    Args:
        module: the engine's, whose parameters bear the same names between dots.
        reference: diffusers' class.
    """
    kept = set(getattr(reference, "_keep_in_fp32_modules", None) or ())
    for path, parameter in module.named_parameters():
        if kept.intersection(path.split(".")):
            parameter.data = parameter.data.float()


def family_bridge(family: str) -> Bridge:
    """The bridge of a family.

    Raises:
        CapabilityError: there is none.
    """
    if family not in BRIDGES:
        reason = SPEC.capabilities["refused_families"].get(family, "none was written")
        raise CapabilityError(
            f"rollout.engine=vllm_omni has no bridge to vLLM-Omni's transformer of model.family={family}: {reason}",
            remedy="set rollout.engine=native",
            choices=sorted(BRIDGES),
        )
    return BRIDGES[family]


def _configured(cls: type, od_config: Any, config: Mapping[str, Any]) -> torch.nn.Module:
    """A class that reads the engine's configuration alone."""
    module: torch.nn.Module = cls(od_config=od_config)
    return module


def _by_arguments(cls: type, od_config: Any, config: Mapping[str, Any]) -> torch.nn.Module:
    """A class that takes the entries of diffusers' config as arguments, and the engine's own where it asks."""
    known = inspect.signature(cls.__init__).parameters  # type: ignore[misc]
    given = {"od_config": od_config, **{name: _tupled(value) for name, value in config.items()}}
    module: torch.nn.Module = cls(**{name: value for name, value in given.items() if name in known})
    return module


def _tupled(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _sample(module: torch.nn.Module, arguments: Mapping[str, Any]) -> tuple[torch.Tensor, ...]:
    """The one output, whether it comes in a tuple or in an object."""
    output = module(**arguments)
    return (output[0],) if isinstance(output, tuple) else (output.sample,)


def _qwen_image(module: torch.nn.Module, arguments: Mapping[str, Any]) -> tuple[torch.Tensor, ...]:
    """The engine takes the number of text tokens, which here is the padded one for all rows."""
    tokens = int(arguments["encoder_hidden_states"].shape[1])
    rows = arguments["hidden_states"].shape[0]
    return _sample(module, {**arguments, "txt_seq_lens": [tokens] * rows})


def _tuple(module: torch.nn.Module, arguments: Mapping[str, Any]) -> tuple[torch.Tensor, ...]:
    """All outputs, in order."""
    return tuple(module(**arguments, return_dict=False))


_MODELS = "vllm_omni.diffusion.models"
_QWEN = Bridge(
    f"{_MODELS}.qwen_image.qwen_image_transformer", "QwenImageTransformer2DModel", _by_arguments, _qwen_image
)
BRIDGES: Mapping[str, Bridge] = {
    "sd3": Bridge(f"{_MODELS}.sd3.sd3_transformer", "SD3Transformer2DModel", _configured, _sample),
    "qwen_image": _QWEN,
    "qwen_image_edit": _QWEN,
    "flux": Bridge(f"{_MODELS}.flux.flux_transformer", "FluxTransformer2DModel", _by_arguments, _sample),
    "wan22": Bridge(f"{_MODELS}.wan2_2.wan2_2_transformer", "WanTransformer3DModel", _by_arguments, _tuple),
    "ltx2": Bridge(f"{_MODELS}.ltx2.ltx2_transformer", "LTX2VideoTransformer3DModel", _by_arguments, _tuple),
}
