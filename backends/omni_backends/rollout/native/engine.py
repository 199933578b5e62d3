"""The native rollout engine of diffusion models: packs requests and denoises them in this process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from omni_backends.rollout.native.artifacts import decode
from omni_backends.rollout.native.base import InProcessEngine
from omni_backends.rollout.native.denoise import PackRun, Prompted
from omni_portable.contracts.media import MediaArtifact
from omni_portable.contracts.model import DiffusionAdapter
from omni_portable.contracts.rollout import Conditioning, Extent, RolloutRequest, Trajectory
from omni_portable.models.setup import EngineSetup, load_adapter
from omni_portable.rollout.batching import Pack, check_request, plan_packs
from omni_portable.rollout.inflight import Outcome, Ticket


class NativeRolloutEngine(InProcessEngine[DiffusionAdapter, RolloutRequest, Pack]):
    """Denoises with the family's own adapter; see :class:`InProcessEngine`."""

    def __init__(self, setup: EngineSetup) -> None:
        super().__init__(setup, ("transformer", "text_encoder", "vae"))

    def _load_model(self, setup: EngineSetup, components: tuple[str, ...]) -> DiffusionAdapter:
        return load_adapter(setup, components)

    def _plan(self, requests: Sequence[RolloutRequest]) -> list[Pack]:
        for request in requests:
            check_request(request)
        return plan_packs(requests, self._latent_shape, self._max_num_seqs)

    async def _run(
        self, pack: Pack, requests: Sequence[RolloutRequest], tickets: Sequence[Ticket], version: int
    ) -> dict[int, Trajectory]:
        rows = [row for row in pack.rows if tickets[row].outcome is Outcome.PENDING]
        mine = [tickets[row] for row in rows]
        run = await self._prepare(pack, [requests[row] for row in rows], mine)
        for step in range(run.num_steps):
            with await self._turn(mine, "denoise"):
                run.advance(step)
                self._statistics.count("forwards")
        artifacts = await self._decode(run, mine)
        with await self._turn(mine, "record"):
            return self._finish(run, artifacts, rows, mine, version)

    async def _prepare(self, pack: Pack, requests: Sequence[RolloutRequest], tickets: Sequence[Ticket]) -> PackRun:
        prompts: list[Prompted] = []
        for request in requests:
            with await self._turn(tickets, "encode"):
                prompts.append(self._prompted(request, pack.key.with_negative))
        with await self._turn(tickets, "encode"):
            self._statistics.batch(len(requests))
            return PackRun(self._adapter, requests, pack.key, prompts, self._setup.load.torch_device)

    async def _decode(self, run: PackRun, tickets: Sequence[Ticket]) -> list[dict[str, MediaArtifact]]:
        artifacts: list[dict[str, MediaArtifact]] = []
        size = self._options.decode_batch_size or run.size
        for first in range(0, run.size, size):
            with await self._turn(tickets, "decode"):
                artifacts += decode(self._adapter, run.latents[first : first + size], run.extent)
        return artifacts

    def _finish(
        self,
        run: PackRun,
        artifacts: Sequence[dict[str, MediaArtifact]],
        rows: Sequence[int],
        tickets: Sequence[Ticket],
        version: int,
    ) -> dict[int, Trajectory]:
        finished: dict[int, Trajectory] = {}
        for index, (row, ticket) in enumerate(zip(rows, tickets, strict=True)):
            if ticket.outcome is Outcome.PENDING:
                finished[row] = run.trajectory(index, artifacts[index], version, self.name)
                self._inflight.finish(ticket)
        return finished

    def _prompted(self, request: RolloutRequest, with_negative: bool) -> Prompted:
        media, extent = request.media, request.extent
        negative = self._conditioning(request.negative_prompt, media, extent) if with_negative else None
        return Prompted(self._conditioning(request.prompt, media, extent), negative)

    def _encode(self, prompt: str, media: Mapping[str, MediaArtifact], extent: Extent) -> Conditioning:
        """On the host, where all trajectories of the prompt share it and the cache costs no device memory."""
        encoded = self._adapter.encode([prompt], [media] if media else None, extent)[0]
        return {name: tensor.detach().to("cpu") for name, tensor in encoded.items()}

    def _latent_shape(self, request: RolloutRequest) -> tuple[int, ...]:
        return self._adapter.latent_shape(request.extent)
