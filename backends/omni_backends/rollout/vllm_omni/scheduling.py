"""Request-level batches that are the packs they were sent as, however late some of their requests arrive."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vllm_omni.diffusion.diffusion_engine import DiffusionEngine, DiffusionExecutionMode
from vllm_omni.diffusion.sched.interface import SchedulerRequestState, _AdmissionWaitDecision
from vllm_omni.diffusion.sched.request_scheduler import RequestScheduler

from omni_backends.rollout.vllm_omni.messages import KEY


class PackScheduler(RequestScheduler):
    """Waits for the whole of a pack, at most `request_batch_max_wait_ms`, and never mixes two.

    The engine's own scheduler goes on 50 ms after the last arrival, which on a busy machine parts a pack, and with it
    changes the shapes that the actor repeats.
    """

    def get_admission_wait_decision(self, *, now: float, dp_concurrent: bool = False) -> _AdmissionWaitDecision:
        """Wait for the pack of the request that waits longest."""
        if self.num_running_requests() or not self._waiting or self._complete():
            return _AdmissionWaitDecision(should_wait=False)
        wait_s = self.od_config.request_batch_max_wait_ms / 1000.0
        return _AdmissionWaitDecision(should_wait=True, deadline=now + wait_s, max_batch=self.max_num_running_reqs)

    def should_end_admission_wait(self, decision: _AdmissionWaitDecision, *, now: float, stable_since: float) -> bool:
        """All of the pack are here, or the time is over."""
        return self._complete() or (decision.deadline is not None and now >= decision.deadline)

    def _can_schedule_waiting(self, state: SchedulerRequestState) -> bool:
        if not super()._can_schedule_waiting(state):
            return False
        return not self._running or _pack(self._request_states[self._running[0]]) == _pack(state)

    def _complete(self) -> bool:
        waiting = [self._request_states[name] for name in self._waiting]
        if not waiting:
            return True
        pack, rows = _pack(waiting[0])
        return sum(_pack(state)[0] == pack for state in waiting) >= rows


class PackEngine(DiffusionEngine):
    """vLLM-Omni's diffusion engine with a :class:`PackScheduler` where it batches whole requests (`engine_backend`)."""

    def _init_scheduler(self, od_config: Any, scheduler: Any = None, *arguments: Any, **keywords: Any) -> None:
        if scheduler is None and self.execution_mode is DiffusionExecutionMode.REQUEST_BATCH:
            scheduler = PackScheduler()
        super()._init_scheduler(od_config, scheduler, *arguments, **keywords)


def _pack(state: SchedulerRequestState) -> tuple[str, int]:
    """Pack of a request and the number of requests that belong to it."""
    message: Mapping[str, Any] = (state.req.sampling_params.extra_args or {}).get(KEY) or {}
    return str(message.get("pack", state.request_id)), int(message.get("rows", 1))
