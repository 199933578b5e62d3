"""Names that both sides of the process boundary use."""

from __future__ import annotations

ADAPTER_ID = 1
"""vLLM's number of the one adapter."""
ADAPTER_NAME = "policy"
