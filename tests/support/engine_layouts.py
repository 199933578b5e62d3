"""Our layouts against the model classes of vLLM and vLLM-Omni themselves, in a process of its own.

    python -m tests.support.engine_layouts (vllm_omni | vllm) NAME...

prints one JSON object: name of the tiny model -> findings (lists of names that differ; empty lists are agreement).
vLLM keeps state for the whole process, so that other tests must not share it.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from omni_portable.config.tiny import tiny_folder
from omni_portable.contracts import registry
from omni_portable.contracts.model import ModelLoad
from omni_portable.models.lora import inject_lora, lora_named_tensors
from omni_portable.models.weights import named_tensors

Findings = dict[str, Any]
RANK, ALPHA = 2, 3.0


def main(engine: str, names: list[str]) -> dict[str, Findings]:
    if engine == "vllm":
        with language_world():
            return {name: language_findings(name) for name in names}
    with omni_world():
        return {name: diffusion_findings(name) for name in names}


def loaded(name: str) -> Any:
    """Our adapter with the trained part of the model."""
    load = ModelLoad(tiny_folder(name), torch.device("cpu"), torch.float32, ("transformer",))
    return registry.load("model", name.partition("/")[0])(load)


def compare(expected: dict[str, torch.Tensor], held: dict[str, torch.Tensor]) -> Findings:
    """Names on one side only, and tensors of another shape or with other values."""
    both = [name for name in expected if name in held]
    return {
        "only_ours": sorted(set(expected) - set(held)),
        "only_engine": sorted(set(held) - set(expected)),
        "shapes": [name for name in both if expected[name].shape != held[name].shape],
        "values": [n for n in both if expected[n].shape == held[n].shape and not _equal(expected[n], held[n])],
    }


def _equal(expected: torch.Tensor, held: torch.Tensor) -> bool:
    return torch.equal(expected.to(held.dtype), held)


@contextmanager
def omni_world() -> Iterator[None]:
    """The groups and settings that vLLM-Omni's layers look up when they are made."""
    from vllm.config import DeviceConfig, VllmConfig, set_current_vllm_config
    from vllm_omni.diffusion.distributed import parallel_state

    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="0", RANK="0", LOCAL_RANK="0", WORLD_SIZE="1")
    with (
        tempfile.TemporaryDirectory() as folder,
        set_current_vllm_config(VllmConfig(device_config=DeviceConfig("cpu"))),
    ):
        method = f"file://{folder}/store"
        parallel_state.init_distributed_environment(1, 0, distributed_init_method=method, local_rank=0, backend="gloo")
        parallel_state.initialize_model_parallel(backend="gloo")
        yield


def engine_transformer(family: str, folder: Path) -> torch.nn.Module:
    """vLLM-Omni's transformer for one component's folder, as its own pipelines make it; weights are not loaded."""
    from vllm_omni.diffusion.data import OmniDiffusionConfig, TransformerConfig
    from vllm_omni.diffusion.models import ltx2, wan2_2
    from vllm_omni.diffusion.models.flux.flux_transformer import FluxTransformer2DModel
    from vllm_omni.diffusion.models.minimax_h3.minimax_h3_transformer import MiniMaxH3DiTModel
    from vllm_omni.diffusion.models.qwen_image.qwen_image_transformer import QwenImageTransformer2DModel
    from vllm_omni.diffusion.models.sd3.sd3_transformer import SD3Transformer2DModel
    from vllm_omni.diffusion.utils.tf_utils import get_transformer_config_kwargs

    config = json.loads((folder / "config.json").read_text())
    if family == "minimax_h3":  # sizes that the engine takes as constants of the published model
        width = config["hidden_size"]
        config |= {"adaln_out_features": 18 * width, "final_adaln_out_features": 2 * width}
    engine = OmniDiffusionConfig(
        model=str(folder.parent), dtype=torch.float32, tf_model_config=TransformerConfig.from_dict(config)
    )
    if family == "wan22":
        return wan2_2.pipeline_wan2_2.create_transformer_from_config(config)
    if family == "ltx2":
        return ltx2.create_transformer_from_config(config)
    if family == "minimax_h3":
        return MiniMaxH3DiTModel(engine, quant_config=None, diffusers_weights=True)
    if family == "sd3":
        return SD3Transformer2DModel(od_config=engine)
    cls = FluxTransformer2DModel if family == "flux" else QwenImageTransformer2DModel
    arguments = get_transformer_config_kwargs(engine.tf_model_config, cls)
    return cls(od_config=engine, quant_config=None, **arguments)


def diffusion_findings(name: str) -> Findings:
    """What the engine's loader makes of canonical tensors, against what our layout says; and a LoRA likewise."""
    adapter, folder, family = loaded(name), tiny_folder(name), name.partition("/")[0]
    layout = adapter.layout
    components = [part for part in ("transformer", "transformer_2") if (folder / part).is_dir()]
    prefixes = {part: f"{part}." if len(components) > 1 else "" for part in components}
    pipeline = torch.nn.Module()
    for part in components:
        pipeline.add_module(part, engine_transformer(family, folder / part))
    own = {n: t.detach().clone() for n, t in named_tensors(adapter.transformer).items()}
    for part, prefix in prefixes.items():
        module: Any = getattr(pipeline, part)
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.fill_(7)
        module.load_weights([(n.removeprefix(prefix), t) for n, t in own.items() if n.startswith(prefix)])
        if not hasattr(module, "stacked_params_mapping"):
            module.stacked_params_mapping = layout.stacked_params()
        _ready(module)
    trained = dict(adapter.transformer.named_parameters())
    held = {
        prefix + n: p.detach()
        for part, prefix in prefixes.items()
        for n, p in getattr(pipeline, part).named_parameters()
    }
    expected = layout.fuse((n, t.detach()) for n, t in trained.items())
    back = layout.split(held.items())
    return {
        **compare(expected, held),
        "read_back": [n for n, t in trained.items() if n not in back or not _equal(t.detach(), back[n])],
        **lora_findings(adapter, pipeline, {prefix: part for part, prefix in prefixes.items()}),
    }


def _ready(module: torch.nn.Module) -> None:
    """What the engine does after loading, with linear layers that keep their weights as they are."""
    from vllm.model_executor.layers.linear import LinearBase

    for child in module.modules():
        if isinstance(child, LinearBase):
            child.skip_weight_relayout = True
            child.quant_method.process_weights_after_loading(child)


def lora_findings(adapter: Any, pipeline: torch.nn.Module, parts: dict[str, str]) -> Findings:
    """Bind a random LoRA by the engine's own manager and compare what its layers add with (alpha / rank) B A x."""
    from vllm.lora.lora_model import LoRAModel
    from vllm.lora.lora_weights import LoRALayerWeights
    from vllm.lora.peft_helper import PEFTHelper
    from vllm.lora.request import LoRARequest
    from vllm_omni.diffusion.lora.manager import DiffusionLoRAManager

    info = inject_lora(adapter.transformer, rank=RANK, alpha=ALPHA, targets=adapter.lora_targets(), seed=1)
    lora = {name: _random(tensor.shape, name) for name, tensor in lora_named_tensors(adapter.transformer)}
    engine = {target: t for name, tensor in lora.items() for target, t in adapter.rollout_layout(name, tensor)}
    paths = {
        name.removesuffix(".lora_A.weight"): _engine_path(name, parts)
        for name in engine
        if name.endswith(".lora_A.weight")
    }
    weights = {
        path: LoRALayerWeights(
            path, RANK, ALPHA, engine[f"{name}.lora_A.weight"], engine[f"{name}.lora_B.weight"], scaling=ALPHA / RANK
        )
        for name, path in paths.items()
    }
    helper = PEFTHelper(r=RANK, lora_alpha=ALPHA, target_modules=list(weights))  # type: ignore[arg-type]
    hook: Any = lambda **_: (LoRAModel(1, RANK, weights), helper)  # noqa: E731
    pipeline._load_diffusion_lora_adapter = hook
    dtype = torch.bfloat16 if adapter.family == "minimax_h3" else torch.float32  # its layers have the dtype built in
    for held in weights.values():
        held.lora_a, held.lora_b = held.lora_a.to(dtype), held.lora_b.to(dtype, copy=True)  # scaled in place
    manager = DiffusionLoRAManager(pipeline, torch.device("cpu"), dtype)
    manager.set_active_adapter(LoRARequest("policy", 1, os.getcwd()))
    layers = manager._lora_modules
    bound = sum(sum(layer._diffusion_lora_active_slices) for layer in layers.values())
    expected = info.expected_modules + sum(path.endswith(".mlp.fc1") for path in weights)  # one LoRA, two slices
    return {
        "lora_expected": expected,
        "lora_bound": bound,
        "lora_values": _lora_values(adapter, lora, layers, parts),
    }


def _lora_values(
    adapter: Any, lora: dict[str, torch.Tensor], layers: dict[str, Any], parts: dict[str, str]
) -> list[str]:
    """Canonical paths whose rows of the engine's layer add something else."""
    wrong = []
    for name in lora:
        if not name.endswith(".lora_A.weight"):
            continue
        path = name.removesuffix(".lora_A.weight")
        target, shard = adapter.layout.rollout_name(f"{path}.weight")
        layer = layers[_engine_path(target.removesuffix(".weight") + ".lora_A.weight", parts)]
        down, up = lora[name], lora[f"{path}.lora_B.weight"]
        given = _random((3, down.shape[1]), path).to(layer.base_layer.weight.dtype)
        with torch.no_grad():
            full, base = (_first(module(given)).float() for module in (layer, layer.base_layer))
        rows = full.shape[-1] // 3
        place = slice(None) if shard is None else slice("qkv".index(shard) * rows, ("qkv".index(shard) + 1) * rows)
        ((_, swapped),) = adapter.layout.tensors(f"{path}.lora_B.weight", up)
        expected = ALPHA / RANK * given.float() @ down.T @ swapped.T
        added = (full - base)[:, place]
        tolerance = 1e-5 if given.dtype == torch.float32 else 0.1
        if added.shape != expected.shape or (added - expected).abs().max() > tolerance * expected.abs().max():
            wrong.append(path)
    return wrong


def _engine_path(name: str, parts: dict[str, str]) -> str:
    """Name in the layout -> path below the pipeline."""
    path = name.removesuffix(".lora_A.weight")
    return path if len(parts) > 1 else f"{next(iter(parts.values()))}.{path}"


def _first(output: Any) -> torch.Tensor:
    found: torch.Tensor = output[0] if isinstance(output, tuple) else output
    return found


def _random(shape: Any, name: str) -> torch.Tensor:
    return torch.randn(tuple(shape), generator=torch.Generator().manual_seed(sum(map(ord, name))))


@contextmanager
def language_world() -> Iterator[None]:
    """The groups that vLLM's layers look up when they are made."""
    from vllm.config import DeviceConfig, VllmConfig, set_current_vllm_config
    from vllm.distributed.parallel_state import init_distributed_environment, initialize_model_parallel

    with tempfile.TemporaryDirectory() as folder:
        with set_current_vllm_config(VllmConfig(device_config=DeviceConfig("cpu"))):
            init_distributed_environment(1, 0, f"file://{folder}/store", 0, "gloo")
            initialize_model_parallel(backend="gloo")
        yield


def language_findings(name: str) -> Findings:
    """As :func:`diffusion_findings` without a LoRA, for vLLM's class of a language model."""
    from vllm.config import set_current_vllm_config
    from vllm.engine.arg_utils import EngineArgs
    from vllm.model_executor.model_loader.utils import initialize_model

    from omni_backends.rollout.vllm.serving import ServingFolder
    from omni_portable.models.autoregressive.layout import fuse, split

    adapter = loaded(name)
    serving = ServingFolder(tiny_folder(name))
    arguments = EngineArgs(str(serving.path), dtype="float32", enforce_eager=True, max_model_len=64)
    config = arguments.create_engine_config()
    with set_current_vllm_config(config):
        model: Any = initialize_model(vllm_config=config)
    serving.close()
    model = getattr(model, "thinker", model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(7)
    own = {n: t.detach().clone() for n, t in adapter.transformer.named_parameters()}
    model.load_weights(list(own.items()))
    towers = ("visual.", "audio_tower.")
    held = {n: p.detach() for n, p in model.named_parameters() if not n.startswith(towers)}
    expected = fuse(own.items(), adapter.rollout_prefixes)
    for target, tensor in expected.items():  # the engine pads the vocabulary
        if target in held and "embed" in target or "lm_head" in target:
            held[target] = held[target][: tensor.shape[0]]
    back = split(held, {n: t.shape for n, t in own.items()}, adapter.rollout_prefixes)
    return {**compare(expected, held), "read_back": [n for n, t in own.items() if not _equal(t, back[n])]}


if __name__ == "__main__":
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    found = main(sys.argv[1], sys.argv[2:])
    print("FINDINGS " + json.dumps(found))
