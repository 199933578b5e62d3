"""Packing of requests: which of them may share one transformer forward."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

from omni_portable.contracts.errors import ConfigError
from omni_portable.contracts.rollout import Extent, RolloutRequest

LatentShape = Callable[[RolloutRequest], tuple[int, ...]]
"""Shape of one request's latents, without batch dimension."""


@dataclass(frozen=True)
class ShapeKey:
    """What requests must agree on to be denoised in one batch.

    The stochastic steps themselves may differ (each row has its own window), their number may not, because the stored
    transitions of a pack are replayed as one batch per stored step.
    """

    extent: Extent
    latent_shape: tuple[int, ...]
    schedule: str
    guidance_scale: float
    kind: str
    noise_level: float
    include_normalizer: bool
    record_transitions: bool
    record_every_step: bool
    keep_negative: bool
    stochastic_steps: int

    @property
    def with_negative(self) -> bool:
        """Whether negative conditioning is needed: classifier-free guidance runs, or training asks for it."""
        return self.guidance_scale != 1.0 or self.keep_negative


@dataclass(frozen=True)
class Pack:
    """Positions (in the list of requests) of the rows of one batch, in request order."""

    key: ShapeKey
    rows: tuple[int, ...]


def shape_key(request: RolloutRequest, latent_shape: tuple[int, ...]) -> ShapeKey:
    """The key of a request whose latents have `latent_shape` (no batch dimension)."""
    plan = request.plan
    return ShapeKey(
        extent=request.extent,
        latent_shape=tuple(latent_shape),
        schedule=request.schedule.fingerprint,
        guidance_scale=request.guidance_scale,
        kind=plan.kind,
        noise_level=plan.noise_level,
        include_normalizer=plan.include_normalizer,
        record_transitions=plan.record_transitions,
        record_every_step=plan.record_every_step,
        keep_negative=plan.keep_negative,
        stochastic_steps=len(plan.stochastic_steps),
    )


def plan_packs(requests: Sequence[RolloutRequest], latent_shape: LatentShape, max_num_seqs: int) -> list[Pack]:
    """Pack requests of equal :class:`ShapeKey`, in order, into batches of at most `max_num_seqs` rows.

    Packs are ordered by their first row; within a pack rows keep request order, so a list of like requests is cut into
    contiguous batches, the same cut that an actor makes with micro-batches of `max_num_seqs`.

    Raises:
        ConfigError: `max_num_seqs` is below 1.
    """
    keys = [shape_key(request, latent_shape(request)) for request in requests]
    return [Pack(keys[rows[0]], rows) for rows in equal_keys(keys, max_num_seqs)]


def equal_keys(keys: Sequence[Hashable], max_num_seqs: int) -> list[tuple[int, ...]]:
    """Positions of equal keys, in order, in batches of at most `max_num_seqs`; batches are ordered by their first.

    Raises:
        ConfigError: `max_num_seqs` is below 1.
    """
    if max_num_seqs < 1:
        raise ConfigError(f"rollout.max_num_seqs is {max_num_seqs}", remedy="set it to 1 or more")
    open_rows: dict[Hashable, list[int]] = {}
    packs: list[list[int]] = []
    for position, key in enumerate(keys):
        rows = open_rows.get(key)
        if rows is None or len(rows) == max_num_seqs:
            rows = open_rows[key] = []
            packs.append(rows)
        rows.append(position)
    return [tuple(rows) for rows in packs]


def check_request(request: RolloutRequest) -> None:
    """Check that a request's sampling plan can be carried out on its schedule.

    Raises:
        ConfigError: stochastic steps out of range or out of order, a kernel without noise, or noise without a kernel.
    """
    plan, steps = request.plan, request.plan.stochastic_steps
    owner = f"the sampling plan of request '{request.request_id}'"
    if list(steps) != sorted(set(steps)) or (steps and not 0 <= steps[0] <= steps[-1] < request.schedule.num_steps):
        raise ConfigError(
            f"{owner} has stochastic steps {list(steps)} on a schedule of {request.schedule.num_steps} steps",
            remedy=f"use sorted, distinct steps from 0 to {request.schedule.num_steps - 1}",
        )
    if steps and (plan.kind == "ode" or plan.noise_level <= 0):
        raise ConfigError(
            f"{owner} has stochastic steps but kind '{plan.kind}' and noise level {plan.noise_level}",
            remedy="choose a stochastic kernel with a noise level above 0, or leave stochastic_steps empty",
            choices=("sde", "cps", "dance_sde"),
        )
