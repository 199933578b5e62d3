"""One request on its way through vLLM, and what came of it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import torch

from omni_backends.rollout.vllm.naming import ADAPTER_ID, ADAPTER_NAME
from omni_backends.rollout.vllm.sampling import sampling_parameters
from omni_portable.contracts.errors import LifecycleError, NonFiniteError
from omni_portable.contracts.tokens import (
    AutoregressiveAdapter,
    FinishReason,
    TokenInputs,
    TokenPrefix,
    TokenRequest,
    TokenTrajectory,
)
from omni_portable.models.autoregressive.continuing import begun, ending, joined, kept, mixed, stopped
from omni_portable.rollout.inflight import Ticket


@dataclass
class Job:
    """A request and its response so far; written on vLLM's loop, read when that has ended.

    Args:
        inputs: the encoded prompt, without a prefix.
        prompt: vLLM's input, with the request's prefix behind it.
        row: of the request in its call.
        ids: of the response, prefix included.
        log_probs: of those after the prefix.
    """

    request: TokenRequest
    inputs: TokenInputs
    prompt: dict[str, Any]
    row: int
    ticket: Ticket
    ids: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)
    finish: FinishReason | None = None


async def respond(front: Any, job: Job, adapter: AutoregressiveAdapter, adapted: bool) -> None:
    """Let vLLM answer one request; `job.finish` stays None where it was aborted.

    Args:
        adapted: whether the LoRA applies.
    """
    from vllm.lora.request import LoRARequest

    job.ids, job.log_probs = begun(job.request), []
    job.finish = ending(adapter, job.request, job.ids)
    if job.finish is not None:
        return  # it was interrupted after its last token
    lora = LoRARequest(ADAPTER_NAME, ADAPTER_ID, "in-memory") if adapted else None
    params = sampling_parameters(job.request, adapter.end_ids)
    stream = front.generate(job.prompt, params, job.request.request_id, lora_request=lora)
    try:
        async for output in stream:
            if _take(job, output.outputs[0], adapter):
                return
    finally:
        await stream.aclose()


def _take(job: Job, said: Any, adapter: AutoregressiveAdapter) -> bool:
    """Add what is new in vLLM's output; whether the response has ended."""
    known = len(job.log_probs)
    for token, row in zip(said.token_ids[known:], said.logprobs[known:], strict=True):
        job.ids.append(int(token))
        job.log_probs.append(float(row[token].logprob))
        if stopped(adapter, job.request.stop, job.ids):
            job.finish = "stop"
            return True
    if said.finish_reason == "stop":
        job.finish = "stop"
    elif said.finish_reason == "length":
        job.finish = "length"
    elif said.finish_reason not in (None, "abort"):
        raise LifecycleError(f"vLLM ended request '{job.request.request_id}' with '{said.finish_reason}'")
    return said.finish_reason is not None


def trajectory(job: Job, version: int, adapter: AutoregressiveAdapter, engine: str) -> TokenTrajectory:
    """The finished response. vLLM scores while it decodes: both kinds of log-probs are these.

    Raises:
        NonFiniteError: a log-prob that is NaN or infinite.
    """
    assert job.finish is not None, "the response has ended before"
    log_probs = torch.tensor(job.log_probs, dtype=torch.float32)
    if not bool(torch.isfinite(log_probs).all()):
        raise NonFiniteError(
            f"the log-probs of request '{job.request.request_id}' (policy version {version}) are not finite",
            remedy="check the weights, the temperature and the dtype of the model",
        )
    log_probs = joined(job.request.prefix, log_probs)
    oldest, versions = mixed(job.request.prefix, len(job.ids), version)
    return TokenTrajectory(
        request=replace(job.request, prefix=None),
        policy_version=oldest,
        inputs=job.inputs,
        response_ids=torch.tensor(job.ids, dtype=torch.int64),
        log_probs=log_probs,
        sampled_log_probs=log_probs.clone(),
        finish_reason=job.finish,
        artifacts=adapter.read_response(job.ids, job.request.stop),
        engine=engine,
        policy_versions=versions,
    )


def partial(job: Job, version: int) -> TokenPrefix | None:
    """What an aborted request had said."""
    return kept(job.request, job.ids, job.log_probs, version)
