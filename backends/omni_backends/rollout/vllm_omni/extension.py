"""What our engine calls in every worker of vLLM-Omni: weights, statistics, and a barrier."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from omni_backends.rollout.vllm_omni.lora import Expected, LoraTarget, MergedBinding
from omni_backends.rollout.vllm_omni.policy import policy_parameters
from omni_backends.rollout.vllm_omni.weights import FullTarget, TransformerWeights
from omni_backends.sync import ReceiverExtension, WeightReceiver, WeightTarget

Answer = dict[str, Any]


class PolicyWorkerExtension(ReceiverExtension):
    """Mixed into vLLM-Omni's worker (`worker_extension_cls`)."""

    model_runner: Any
    lora_manager: Any
    rank: int
    _lora: LoraTarget | None = None

    def make_weight_receiver(self) -> WeightReceiver:
        pipeline = self.model_runner.pipeline
        return WeightReceiver(self._target(pipeline), rank=self.rank)

    def policy_call(self, call: str, arguments: dict[str, Any]) -> Answer:
        """One call of a weight sync on this worker; not ok where any worker's is not."""
        answer: Answer = getattr(self, call)(**arguments)
        if call == "weights_finish" and answer["ok"]:
            self.model_runner.pipeline.drawer.version = self.weight_receiver.version
        return _agreed(answer)

    def policy_lora(self) -> Answer:
        """How a LoRA is applied here: 'adapter', 'merged', or '' (none was sent)."""
        return {"ok": True, "error": "", "way": "" if self._lora is None else self._lora.way}

    def policy_idle(self) -> Answer:
        """Answered between pieces of work, so nothing computes when it returns; forgets aborted samples."""
        self.model_runner.state_cache.clear()
        self.model_runner.input_batch = None
        self.model_runner.pipeline.drawer.forget()
        return {"ok": True, "error": ""}

    def policy_statistics(self) -> Answer:
        """Figures since the last call (see `rollout.statistics`)."""
        return {"ok": True, "error": "", "figures": self.model_runner.pipeline.drawer.statistics.take()}

    def _target(self, pipeline: Any) -> WeightTarget:
        settings = pipeline.od_config.custom_pipeline_args
        layout = pipeline.adapter.layout
        weights = TransformerWeights(policy_parameters(pipeline.transformers), layout)
        if settings["lora"] is None:
            return FullTarget(weights)
        from omni_backends.rollout.vllm_omni.lora_layers import AdapterBinding

        adapter = AdapterBinding(self.lora_manager, pipeline, layout, Path(settings["load"]["path"]))
        expected = Expected(**settings["lora"], dtype=settings["load"]["dtype"])
        self._lora = LoraTarget(adapter, MergedBinding(weights), expected, weights)
        return self._lora


def _agreed(answer: Answer) -> Answer:
    """The answer, turned into a failure where another worker failed: the engine returns the first worker's alone."""
    if not torch.distributed.is_initialized() or torch.distributed.get_world_size() == 1:
        return answer
    from vllm_omni.diffusion.distributed.parallel_state import get_world_group

    flag = torch.tensor([int(bool(answer["ok"]))], dtype=torch.int32)
    torch.distributed.all_reduce(flag, op=torch.distributed.ReduceOp.MIN, group=get_world_group().cpu_group)
    if answer["ok"] and not bool(flag.item()):
        return {**answer, "ok": False, "error": "another worker of the rollout engine failed; see its log"}
    return answer
