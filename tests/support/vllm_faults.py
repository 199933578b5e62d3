"""A worker of vLLM whose next weight update breaks off halfway, for tests. Loaded by vLLM's process."""

from __future__ import annotations

import itertools
from typing import Any

from omni_backends.rollout.vllm.worker import WorkerExtension

REASON = "broken on purpose"


class FaultyWorker(WorkerExtension):
    """Adds the faults to the calls of a worker."""

    def omni_break_next_update(self, only: int = -1) -> dict[str, Any]:
        """Full weights break off after some tensors, a LoRA before it is active; once, in all workers or in one."""
        if only not in (-1, self.rank):  # type: ignore[attr-defined]
            return {"ok": True, "error": ""}
        runner: Any = self.model_runner  # type: ignore[attr-defined]
        manager = getattr(runner, "lora_manager", None)
        if manager is not None:
            _once(manager._adapter_manager, "activate_adapter", 0)
        else:
            _once(runner.get_model(), "load_weights", 5)
        return {"ok": True, "error": ""}

    def omni_set_moe_update(self, value: str) -> dict[str, Any]:
        """As if the engine had been started with that option."""
        target: Any = self.weight_receiver._target
        target.moe_update = value
        return {"ok": True, "error": ""}

    def omni_reload_as_vllm_does(self, folder: str) -> dict[str, Any]:
        """vLLM's own reload of a checkpoint, without what our transfer engine adds."""
        runner: Any = self.model_runner  # type: ignore[attr-defined]
        from vllm.config import set_current_vllm_config

        with set_current_vllm_config(runner.vllm_config):
            runner.reload_weights(weights_path=folder)
        return {"ok": True, "error": ""}


def _once(owner: Any, name: str, first: int) -> None:
    """The method raises at its next call, after it was given the first items of its argument."""
    whole = getattr(owner, name)

    def broken(argument: Any) -> Any:
        delattr(owner, name)
        if first:
            whole(itertools.islice(argument, first))
        raise RuntimeError(REASON)

    setattr(owner, name, broken)
