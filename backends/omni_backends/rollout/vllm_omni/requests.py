"""How a request names the policy's LoRA in vLLM-Omni."""

from __future__ import annotations

from vllm_omni.lora.request import LoRARequest

ADAPTER_ID = 1


def policy_lora_request(folder: str) -> LoRARequest:
    """What a request carries so that the engine applies the policy's LoRA; `folder` is an existing one, unread."""
    return LoRARequest(lora_name="policy", lora_int_id=ADAPTER_ID, lora_path=folder)
