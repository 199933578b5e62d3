"""What this package adds to vLLM's own registries, in every process that runs vLLM. Imports nothing of vLLM by itself.

vLLM calls :func:`register` through the entry-point group `vllm.general_plugins`; it adds one name to the registry of
weight-transfer engines. A process that one of our engines started leaves the terminal's process group, for vLLM would
end its requests on the Ctrl-C that the run is about to handle.
"""

from __future__ import annotations

from omni_backends.rollout.external.guard import leave_the_terminal

PLUGIN = "omni_portable"
"""Name of the entry point."""
TRANSFER = "omni_portable"
"""Name of our weight-transfer engine."""


def register() -> None:
    """Name our weight-transfer engine to vLLM; its module loads when an engine is configured with it."""
    leave_the_terminal()
    from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory

    try:
        WeightTransferEngineFactory.register_engine(
            TRANSFER, "omni_backends.rollout.vllm.transfer", "StagedTransferEngine"
        )
    except ValueError:  # vLLM calls plugins more than once in a process
        return
