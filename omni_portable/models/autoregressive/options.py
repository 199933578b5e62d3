"""Options that autoregressive families have in common. Torch-free."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class ChatOptions:
    """Keys of `model.options`."""

    system_prompt: str = ""
    """First message of every conversation; empty leaves it out (a chat template may then add its own)."""
    chat: bool = True
    """False reads prompts as they are, without the model's chat template."""
    template: dict[str, Any] = field(default_factory=dict)
    """Variables of the chat template, for example {enable_thinking: false}."""
