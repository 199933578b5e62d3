"""Trajectories from given responses, for offline preference pairs."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from omni_backends.rollout.native_tokens.engine import NativeTokenEngine, Rows
from omni_portable.contracts.errors import DataError
from omni_portable.contracts.media import require_artifact
from omni_portable.contracts.tokens import RESPONSE, TokenRequest, TokenTrajectory
from omni_portable.rollout.inflight import Outcome, Ticket


class DatasetTokenEngine(NativeTokenEngine):
    """Requests with a `target` become the response that it holds; all others are drawn as 'native' does.

    A given response was sampled by nobody: its log-probs are NaN. The responses of one prompt are taken together, so
    that a pair can be checked.
    """

    name = "dataset"

    def _plan(self, requests: Sequence[TokenRequest]) -> list[Rows]:
        drawn = [row for row, request in enumerate(requests) if not request.target]
        packs = [tuple(drawn[row] for row in pack) for pack in super()._plan([requests[row] for row in drawn])]
        given: dict[str, list[int]] = {}
        for row, request in enumerate(requests):
            if request.target:
                given.setdefault(request.group_id, []).append(row)
        return [*packs, *map(tuple, given.values())]

    async def _run(
        self, pack: Rows, requests: Sequence[TokenRequest], tickets: Sequence[Ticket], version: int
    ) -> dict[int, TokenTrajectory]:
        """
        Raises:
            ArtifactError: a target without a text called 'response'.
            DataError: responses of one prompt that are equal or longer than rollout.max_new_tokens; names the prompt.
        """
        if not requests[pack[0]].target:
            return await super()._run(pack, requests, tickets, version)
        mine = [tickets[row] for row in pack]
        taken: dict[int, TokenTrajectory] = {}
        for place, row in enumerate(pack):
            with await self._turn(mine, "encode"):
                if tickets[row].outcome is Outcome.PENDING:
                    taken[row] = self._take(requests[row], len(pack), place, version)
        _refuse_equal(list(taken.values()))
        with await self._turn(mine, "record"):
            self._statistics.batch(len(pack))
            finished = {row: t for row, t in taken.items() if tickets[row].outcome is Outcome.PENDING}
            for row in finished:
                self._inflight.finish(tickets[row])
            return finished

    def _take(self, request: TokenRequest, size: int, place: int, version: int) -> TokenTrajectory:
        text = require_artifact(request.target, RESPONSE, "text", f"the prompt '{request.prompt_id}' (data.targets)")
        ids = self._adapter.response_ids(str(text.data))
        if len(ids) > request.max_new_tokens:
            raise DataError(
                f"the response that prompt '{request.prompt_id}' is given has {len(ids)} tokens, more than "
                f"rollout.max_new_tokens={request.max_new_tokens}",
                remedy="raise rollout.max_new_tokens, or leave the row out",
            )
        none = torch.full((len(ids),), torch.nan)
        return TokenTrajectory(
            request=request,
            policy_version=version,
            inputs=self._prompted(request),
            response_ids=ids,
            log_probs=none,
            sampled_log_probs=none,
            finish_reason="given",
            artifacts=dict(request.target),
            batch_size=size,
            batch_row=place,
            engine=self.name,
        )


def _refuse_equal(taken: Sequence[TokenTrajectory]) -> None:
    """Equal responses to one prompt teach nothing, and a pair of them is a mistake in the data."""
    for position, trajectory in enumerate(taken):
        for earlier in taken[:position]:
            if torch.equal(trajectory.response_ids, earlier.response_ids):
                request = trajectory.request
                raise DataError(
                    f"responses {earlier.request.sample_index} and {request.sample_index} of prompt "
                    f"'{request.prompt_id}' ({request.prompt!r}) are equal, so neither can be preferred",
                    remedy="remove the row, or mend one of its sides",
                )
