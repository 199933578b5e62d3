"""Trajectories from given media, for supervised fine-tuning and offline preference pairs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from omni_backends.rollout.native.engine import NativeRolloutEngine
from omni_portable.contracts.errors import ArtifactError, DataError, NonFiniteError
from omni_portable.contracts.rollout import RolloutRequest, Trajectory
from omni_portable.models.policy import join_conditioning
from omni_portable.rollout.batching import Pack, shape_key
from omni_portable.rollout.inflight import Outcome, Ticket


class DatasetRolloutEngine(NativeRolloutEngine):
    """Requests with a `target` are encoded (VAE and prompt, no denoising); all others are drawn as 'native' does.

    A trajectory of a given sample has clean latents and conditioning, but no stored steps and no log-probs; its
    artifacts are the target itself. The samples of one prompt are taken together, so that a pair can be checked.
    """

    name = "dataset"

    def _plan(self, requests: Sequence[RolloutRequest]) -> list[Pack]:
        drawn = [row for row, request in enumerate(requests) if not request.target]
        packs = [
            replace(pack, rows=tuple(drawn[row] for row in pack.rows))
            for pack in super()._plan([requests[row] for row in drawn])
        ]
        given: dict[str, list[int]] = {}
        for row, request in enumerate(requests):
            if request.target:
                given.setdefault(request.group_id, []).append(row)
        for rows in given.values():
            first = requests[rows[0]]
            packs.append(Pack(shape_key(first, self._latent_shape(first)), tuple(rows)))
        return packs

    async def _run(
        self, pack: Pack, requests: Sequence[RolloutRequest], tickets: Sequence[Ticket], version: int
    ) -> dict[int, Trajectory]:
        """
        Raises:
            ArtifactError: a target that is missing or of another size than the rollout's; names the prompt.
            DataError: samples of one prompt whose media are equal, so that none can be preferred.
        """
        if not requests[pack.rows[0]].target:
            return await super()._run(pack, requests, tickets, version)
        mine = [tickets[row] for row in pack.rows]
        taken: dict[int, Trajectory] = {}
        for place, row in enumerate(pack.rows):
            with await self._turn(mine, "encode"):
                if tickets[row].outcome is Outcome.PENDING:
                    taken[row] = self._take(requests[row], pack, place, version)
        _refuse_equal(list(taken.values()))
        with await self._turn(mine, "record"):
            self._statistics.batch(len(pack.rows))
            finished = {row: t for row, t in taken.items() if tickets[row].outcome is Outcome.PENDING}
            for row in finished:
                self._inflight.finish(tickets[row])
            return finished

    def _take(self, request: RolloutRequest, pack: Pack, place: int, version: int) -> Trajectory:
        """One given sample, without the steps that would have led to it."""
        prompted = self._prompted(request, pack.key.with_negative)
        try:
            latents = self._adapter.encode_media(request.target, request.extent)
        except ArtifactError as error:
            raise ArtifactError(
                f"the target of prompt '{request.prompt_id}' ({request.prompt!r}): {error.problem}",
                remedy=error.remedy or "set data.targets.NAME.resize",
                choices=error.choices,
            ) from error
        if not bool(torch.isfinite(latents).all()):
            raise NonFiniteError(f"the latents of the target of prompt '{request.prompt_id}' are not finite")
        none = torch.empty((0, *pack.key.latent_shape), dtype=torch.float32)
        return Trajectory(
            request=request,
            schedule_fingerprint=request.schedule.fingerprint,
            policy_version=version,
            step_indices=torch.empty(0, dtype=torch.int64),
            latents=none,
            next_latents=none,
            log_probs=torch.empty(0, dtype=torch.float32),
            final_latents=latents.detach().to("cpu", torch.float32, copy=True),
            conditioning=join_conditioning(prompted.positive, prompted.negative),
            artifacts=dict(request.target),
            batch_size=len(pack.rows),
            batch_row=place,
            engine=self.name,
        )


def _refuse_equal(taken: Sequence[Trajectory]) -> None:
    """Samples of one prompt that are the same teach nothing, and a pair of them is a mistake in the data."""
    for position, trajectory in enumerate(taken):
        for earlier in taken[:position]:
            if torch.equal(trajectory.final_latents, earlier.final_latents):
                request = trajectory.request
                raise DataError(
                    f"samples {earlier.request.sample_index} and {request.sample_index} of prompt "
                    f"'{request.prompt_id}' ({request.prompt!r}) have equal media, so neither can be preferred",
                    remedy="remove the row, or mend one of its sides",
                )
