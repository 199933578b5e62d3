"""Qwen3 on transformers' own classes."""

from __future__ import annotations

from pathlib import Path

from transformers import Qwen3ForCausalLM

from omni_portable.contracts.device import AttentionRequest
from omni_portable.contracts.model import ModelLoad
from omni_portable.models.autoregressive.adapter import LanguageAdapter, attention_kernel
from omni_portable.models.autoregressive.folder import NUMBERS
from omni_portable.models.autoregressive.policy import LanguagePolicy
from omni_portable.models.folders import read_json, whole_numbers
from omni_portable.models.loading import load_transformers
from omni_portable.models.qwen3.folder import attention_requests


class Qwen3Adapter(LanguageAdapter):
    """Language model, head and tokenizer of one folder.

    Raises:
        ModelError: a folder that is missing, incomplete, corrupt or of another family.
    """

    family = "qwen3"

    def __init__(self, load: ModelLoad) -> None:
        config = read_json(load.path / "config.json")
        whole_numbers(load.path / "config.json", config, NUMBERS)
        super().__init__(load, int(config["vocab_size"]))
        if "transformer" in load.components:
            model = load_transformers(Qwen3ForCausalLM, load.path, load.dtype, attention_kernel(load))
            self._policy = LanguagePolicy(model, "model", load.path).to(load.torch_device)

    @classmethod
    def attention_requests(cls, path: Path, dtype: str, training: bool) -> list[AttentionRequest]:
        return attention_requests(path, dtype, training)
