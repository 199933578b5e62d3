"""What this package adds to vLLM's own registries, in every process that runs vLLM. Imports nothing of vLLM by itself.

vLLM calls :func:`register` through the entry-point group `vllm.general_plugins`; it adds one name to the registry of
weight-transfer engines and changes nothing else.
"""

from __future__ import annotations

PLUGIN = "omni_portable"
"""Name of the entry point."""
TRANSFER = "omni_portable"
"""Name of our weight-transfer engine."""


def register() -> None:
    """Name our weight-transfer engine to vLLM; its module loads when an engine is configured with it."""
    from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory

    try:
        WeightTransferEngineFactory.register_engine(
            TRANSFER, "omni_backends.rollout.vllm.transfer", "StagedTransferEngine"
        )
    except ValueError:  # vLLM calls plugins more than once in a process
        return
