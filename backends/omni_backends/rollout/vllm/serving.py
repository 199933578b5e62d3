"""Model folders as vLLM reads them, and what the policy in them consists of."""

from __future__ import annotations

import json
import math
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError

from omni_backends.rollout.external.temporary import private_folder, temporary_errors
from omni_backends.rollout.vllm.inventory import Inventory, TensorShape
from omni_backends.rollout.vllm.merged import MergedLora
from omni_portable.contracts.errors import CapabilityError, WeightSyncError
from omni_portable.contracts.weights import LoraInfo
from omni_portable.models.autoregressive.adapter import LanguageAdapter
from omni_portable.models.folders import read_json
from omni_portable.models.lora import lora_named_tensors
from omni_portable.models.lora_file import inject_configured_lora
from omni_portable.models.setup import EngineSetup, load_token_adapter
from omni_portable.models.weights import apply_tensors, canonical_name, dtype_name

THINKER, WHOLE = "qwen3_omni_moe_thinker", "qwen3_omni_moe"
WHOLE_CLASS = "Qwen3OmniMoeForConditionalGeneration"
TOKENIZER = "tokenizer_config.json"
TOKENS = {
    "image_token": "<|image_pad|>",
    "video_token": "<|video_pad|>",
    "audio_token": "<|audio_pad|>",
    "vision_bos_token": "<|vision_start|>",
    "vision_eos_token": "<|vision_end|>",
    "audio_bos_token": "<|audio_start|>",
    "audio_eos_token": "<|audio_end|>",
}
"""Names under which the published tokenizer offers its media tokens, and vLLM looks for them."""
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - a private folder is made in it


@dataclass(frozen=True)
class Policy:
    """What is trained, as the engine must know it.

    Args:
        inventory: all trainable tensors of the base model.
        lora: what is injected; None for full weights.
        adapter: initial LoRA matrices by canonical name; empty without one.
        merged: set where the LoRA is merged: the engine then knows of full weights only.
    """

    inventory: Inventory
    lora: LoraInfo | None
    adapter: Mapping[str, torch.Tensor]
    merged: MergedLora | None = None


def read_policy(setup: EngineSetup, *, merge_lora: bool) -> Policy:
    """Load the transformer once to see what it consists of, and let it go.

    Raises:
        CapabilityError: a LoRA that vLLM has no kernels for.
    """
    adapter = load_token_adapter(setup, ("transformer",))
    module = adapter.transformer
    named = {canonical_name(name): parameter for name, parameter in module.named_parameters()}
    prefixes: Mapping[str, str] = adapter.rollout_prefixes if isinstance(adapter, LanguageAdapter) else {}
    inventory = Inventory(
        {name: TensorShape(tuple(tensor.shape), dtype_name(tensor.dtype)) for name, tensor in named.items()},
        dict(prefixes),
    )
    base = {name: tensor.detach().cpu().clone() for name, tensor in named.items()} if merge_lora else {}
    lora = inject_configured_lora(adapter, setup.config.model.lora, setup.config.trainer.seed)
    matrices = {name: m.detach().cpu().clone() for name, m in lora_named_tensors(module)} if lora is not None else {}
    described = {name: TensorShape(tuple(matrix.shape), dtype_name(matrix.dtype)) for name, matrix in matrices.items()}
    whole = replace(inventory, adapter=described)
    if lora is not None and merge_lora:
        return Policy(inventory, None, {}, MergedLora(whole, lora, base, matrices))
    if lora is not None and setup.load.torch_device.type == "cpu" and any(".experts." in name for name in named):
        raise CapabilityError(
            "model.lora.rank: beside a mixture of experts vLLM has no kernels for a LoRA on a CPU",
            remedy="set rollout.options.merge_lora=true, which merges it into the base weights at every update",
        )
    return Policy(whole, lora, matrices)


class ServingFolder:
    """A folder for vLLM, removed when it is closed.

    Args:
        path: the model's folder.

    Raises:
        LifecycleError: it cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._made: Path | None = None
        config = read_json(path / "config.json")
        if config.get("model_type") == THINKER:
            self.path = self._made = private_folder("omni-portable-vllm-")
            try:
                with temporary_errors():
                    _wrap_thinker(path, self._made, config)
            except BaseException:
                self.close()
                raise

    @property
    def made(self) -> tuple[Path, ...]:
        """The folder, where it was made for vLLM."""
        return () if self._made is None else (self._made,)

    def close(self) -> None:
        """Remove what was made."""
        if self._made is not None:
            shutil.rmtree(self._made, ignore_errors=True)
            self._made = None


def export_folder(setup: EngineSetup, tensors: Mapping[str, torch.Tensor]) -> Path:
    """A new model folder with these weights in place of the policy's, in shared memory where there is room.

    Raises:
        WeightSyncError: neither there nor in the temporary folder is room for it; gives the sizes.
    """
    needed = sum(file.stat().st_size for file in setup.load.path.iterdir() if file.is_file())
    parent = next((root for root in (SHARED_MEMORY, Path(tempfile.gettempdir())) if _free(root) > needed), None)
    if parent is None:
        raise WeightSyncError(
            f"an exported model takes {needed / 2**20:.1f} MiB; free are {_free(SHARED_MEMORY) / 2**20:.1f} MiB in "
            f"{SHARED_MEMORY} and {_free(Path(tempfile.gettempdir())) / 2**20:.1f} MiB in {tempfile.gettempdir()}",
            remedy="make room, or set TMPDIR to a folder with room",
        )
    adapter = load_token_adapter(setup, ("transformer",))
    apply_tensors(adapter.transformer, tensors)
    folder = Path(tempfile.mkdtemp(prefix="omni-portable-policy-", dir=parent))
    try:
        adapter.transformer.save_pretrained(folder)  # type: ignore[operator]
    except BaseException as error:
        shutil.rmtree(folder, ignore_errors=True)
        if isinstance(error, OSError | SafetensorError):
            raise WeightSyncError(f"the exported model cannot be written in {parent}: {error}") from error
        raise
    return folder


def _free(folder: Path) -> int:
    return shutil.disk_usage(folder).free if folder.is_dir() else 0


def _wrap_thinker(source: Path, target: Path, config: Mapping[str, Any]) -> None:
    """vLLM serves a thinker under the name and the configuration of the whole model.

    The published configuration has keys that transformers' classes do not write and vLLM reads.
    """
    for file in source.iterdir():
        if file.name not in ("config.json", TOKENIZER):
            (target / file.name).symlink_to(file.resolve())
    tokenizer = dict(read_json(source / TOKENIZER))
    named = {**TOKENS, **(tokenizer.get("extra_special_tokens") or {})}
    (target / TOKENIZER).write_text(json.dumps({**tokenizer, "extra_special_tokens": named}, indent=1))
    vision = dict(config["vision_config"])
    side = math.isqrt(int(vision["num_position_embeddings"]))
    vision.setdefault("image_size", side * int(vision["patch_size"]))
    vision.setdefault("apply_vit_abs_pos_embed", True)
    text = {"tie_word_embeddings": False, **config["text_config"]}
    text["rope_parameters"] = {"mrope_interleaved": True, **text["rope_parameters"]}
    whole = {
        "model_type": WHOLE,
        "architectures": [WHOLE_CLASS],
        "thinker_config": {**config, "vision_config": vision, "text_config": text},
        "enable_audio_output": False,
    }
    (target / "config.json").write_text(json.dumps(whole, indent=1))
