"""The native rollout engine of autoregressive models."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from omni_backends.rollout.native.base import InProcessEngine
from omni_backends.rollout.native_tokens.generate import TokenPackRun
from omni_portable.contracts.errors import ConfigError
from omni_portable.contracts.media import MediaArtifact
from omni_portable.contracts.rollout import Conditioning, Extent
from omni_portable.contracts.tokens import AutoregressiveAdapter, TokenInputs, TokenRequest, TokenTrajectory
from omni_portable.models.setup import EngineSetup, load_token_adapter
from omni_portable.rollout.batching import equal_keys
from omni_portable.rollout.inflight import Outcome, Ticket

NO_EXTENT = Extent(0, 0)
"""Responses have no size, so an encoded prompt is the same for all of them."""

Rows = tuple[int, ...]


class NativeTokenEngine(InProcessEngine[AutoregressiveAdapter, TokenRequest, Rows]):
    """Decodes with the family's own adapter and a KV cache, then scores each pack in one forward.

    Requests of equal temperature, top-p and top-k share a pack, in request order; the actor's micro-batches of
    rollout.max_num_seqs are then the same batches, and on-policy ratios are exactly 1.
    """

    def __init__(self, setup: EngineSetup) -> None:
        super().__init__(setup, ("transformer", "text_encoder"))
        if self._options.decode_batch_size:
            raise ConfigError(
                f"rollout.options.decode_batch_size={self._options.decode_batch_size} bounds a VAE's memory, which "
                f"model family '{setup.config.model.family}' does not have",
                remedy="remove it",
            )

    def _load_model(self, setup: EngineSetup, components: tuple[str, ...]) -> AutoregressiveAdapter:
        return load_token_adapter(setup, components)

    def _plan(self, requests: Sequence[TokenRequest]) -> list[Rows]:
        keys = [(request.temperature, request.top_p, request.top_k) for request in requests]
        return equal_keys(keys, self._max_num_seqs)

    async def _run(
        self, pack: Rows, requests: Sequence[TokenRequest], tickets: Sequence[Ticket], version: int
    ) -> dict[int, TokenTrajectory]:
        rows = [row for row in pack if tickets[row].outcome is Outcome.PENDING]
        mine = [tickets[row] for row in rows]
        run = await self._prepare([requests[row] for row in rows], mine)
        try:
            return await self._carry_out(run, rows, mine, version)
        finally:
            self._statistics.count("tokens", run.tokens)
            self._keep(run, mine, version)

    async def _carry_out(
        self, run: TokenPackRun, rows: Sequence[int], mine: Sequence[Ticket], version: int
    ) -> dict[int, TokenTrajectory]:
        while not run.done:
            with await self._turn(mine, "decode"):
                run.advance()
                self._statistics.count("forwards")
        with await self._turn(mine, "score"):
            run.score()
            self._statistics.count("forwards")
        with await self._turn(mine, "record"):
            return self._finish(run, rows, mine, version)

    async def _prepare(self, requests: Sequence[TokenRequest], tickets: Sequence[Ticket]) -> TokenPackRun:
        prompts: list[TokenInputs] = []
        for request in requests:
            with await self._turn(tickets, "encode"):
                prompts.append(self._prompted(request))
        with await self._turn(tickets, "decode"):
            self._statistics.batch(len(requests))
            return TokenPackRun(self._adapter, requests, prompts)

    def _finish(
        self, run: TokenPackRun, rows: Sequence[int], tickets: Sequence[Ticket], version: int
    ) -> dict[int, TokenTrajectory]:
        finished: dict[int, TokenTrajectory] = {}
        for index, (row, ticket) in enumerate(zip(rows, tickets, strict=True)):
            if ticket.outcome is Outcome.PENDING:
                finished[row] = run.trajectory(index, version, self.name)
                self._inflight.finish(ticket)
        return finished

    def _keep(self, run: TokenPackRun, tickets: Sequence[Ticket], version: int) -> None:
        """What aborted requests had drawn, so that they may go on later."""
        for index, ticket in enumerate(tickets):
            if ticket.outcome is Outcome.ABORTED:
                ticket.kept = run.partial(index, version)

    def _prompted(self, request: TokenRequest) -> TokenInputs:
        """The encoded prompt, cached by the turns of its conversation."""
        turns = json.dumps([request.system_prompt, request.prompt])
        return self._conditioning(turns, request.media, NO_EXTENT)

    def _encode(self, prompt: str, media: Mapping[str, MediaArtifact], extent: Extent) -> Conditioning:
        """On the host, where all trajectories of the prompt share it and the cache costs no device memory.

        Args:
            prompt: the turns of the conversation as a JSON list.
        """
        system_prompt, user = json.loads(prompt)
        encoded = self._adapter.build_inputs(user, media, system_prompt)
        return {name: tensor.detach().to("cpu") for name, tensor in encoded.items()}
