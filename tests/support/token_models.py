"""Tiny autoregressive models, requests and media for tests; folders are built once per process."""

from __future__ import annotations

import functools
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch

from omni_portable.contracts import registry
from omni_portable.contracts.media import MediaArtifact
from omni_portable.contracts.model import ModelLoad
from omni_portable.contracts.tokens import TokenInputs, TokenRequest, TokenRow, TokenTrajectory
from omni_portable.models.autoregressive.tiny_media import colour_picture, tone

BOTH = ("transformer", "text_encoder")
FAMILIES = ("qwen3", "qwen_vl", "qwen_vl/qwen2_5", "qwen3_omni")
"""Tiny models of all families, without a warm start."""


@functools.cache
def folder(name: str) -> Path:
    """The folder of a tiny model ('FAMILY' or 'FAMILY/VARIANT')."""
    from omni_portable.config.tiny import tiny_builder

    module, _, function = tiny_builder(name).partition(":")
    path = Path(tempfile.mkdtemp(prefix="tiny-")) / "model"
    getattr(__import__(module, fromlist=[function]), function)(path)
    return path


def load(name: str, components: Sequence[str] = BOTH, **changes: Any) -> Any:
    """A fresh adapter in fp32 on the CPU."""
    arguments: dict[str, Any] = {
        "path": folder(name),
        "torch_device": torch.device("cpu"),
        "dtype": torch.float32,
        "components": tuple(components),
    }
    return registry.load("model", name.partition("/")[0])(ModelLoad(**(arguments | changes)))


def video(frames: int = 5, fps: float = 2.0) -> MediaArtifact:
    drawn = torch.randint(0, 255, (frames, 3, 32, 32), generator=torch.Generator().manual_seed(3), dtype=torch.uint8)
    return MediaArtifact("clip", "video", drawn, "TCHW", fps=fps)


def picture() -> MediaArtifact:
    drawn = torch.randint(0, 255, (3, 40, 56), generator=torch.Generator().manual_seed(1), dtype=torch.uint8)
    return MediaArtifact("image", "image", drawn, "CHW")


def prompts(name: str) -> list[tuple[str, Mapping[str, MediaArtifact]]]:
    """Prompts of different lengths, with what media the family takes."""
    found: list[tuple[str, Mapping[str, MediaArtifact]]] = [("hi", {}), ("what is three plus four?", {})]
    if name != "qwen3":
        found.append(("which?", {"image": colour_picture("red", 0)}))
        found.append(("a <video> b <image> c", {"image": picture(), "clip": video()}))
    if name == "qwen3_omni":
        found.append(("pitch?", {"sound": tone("low", 0)}))
        found.append(("<audio> and <image>", {"image": picture(), "sound": tone("high", 1)}))
    return found


def encoded(adapter: Any, name: str) -> list[TokenInputs]:
    return [adapter.build_inputs(prompt, media) for prompt, media in prompts(name)]


def some_rows(adapter: Any, name: str, seed: int = 0) -> list[TokenRow]:
    """Rows with responses of 1 to 7 random byte tokens."""
    generator = torch.Generator().manual_seed(seed)
    return [
        TokenRow(inputs, torch.randint(0, 256, (1 + (3 * index + seed) % 7,), generator=generator))
        for index, inputs in enumerate(encoded(adapter, name))
    ]


def token_request(index: int = 0, **changes: Any) -> TokenRequest:
    """Request number `index`: sample `index % 4` of prompt `index // 4`."""
    fields: dict[str, Any] = {
        "request_id": f"r{index}",
        "group_id": f"g{index // 4}",
        "prompt_id": f"p{index // 4}",
        "sample_index": index % 4,
        "seed": 11,
        "prompt": f"prompt {index // 4}" + "!" * (index // 4),
        "max_new_tokens": 6,
    }
    return TokenRequest(**(fields | changes))


def token_trajectory(index: int, length: int, **changes: Any) -> TokenTrajectory:
    """A made-up response of `length` tokens; log-probs are minus its index and position."""
    log_probs = -torch.arange(1, length + 1, dtype=torch.float32) - index
    fields: dict[str, Any] = {
        "request": token_request(index),
        "policy_version": 0,
        "inputs": {"ids": torch.tensor([1, 2]), "positions": torch.arange(2)[None]},
        "response_ids": torch.arange(length),
        "log_probs": log_probs,
        "sampled_log_probs": log_probs.clone(),
        "finish_reason": "stop",
        "artifacts": {"response": MediaArtifact("response", "text", f"text {index}", "str")},
    }
    return TokenTrajectory(**(fields | changes))
