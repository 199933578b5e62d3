"""From prompts to rollout requests. All randomness comes from (run seed, round), so any round can be made again."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from omni_portable.config.schema import RolloutConfig
from omni_portable.contracts.rollout import Extent, RolloutRequest, SamplingPlan, Schedule
from omni_portable.data.prompts import PromptRow


def round_seed(run_seed: int, round_name: str) -> int:
    """A 63-bit seed for one round ('step-12', 'validation', 'probe'), independent of every other round's."""
    digest = hashlib.blake2b(f"{run_seed}/{round_name}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def extent_of(rollout: RolloutConfig) -> Extent:
    """Size of the samples that a run draws."""
    return Extent(rollout.height, rollout.width, rollout.num_frames, rollout.frame_rate)


def make_requests(
    rows: Sequence[PromptRow],
    rollout: RolloutConfig,
    *,
    samples: int,
    schedule: Schedule,
    plan: SamplingPlan,
    seed: int,
    round_name: str,
) -> list[RolloutRequest]:
    """`samples` requests per prompt, those of one prompt adjacent, in prompt order.

    A row's own 'negative_prompt' wins over rollout.negative_prompt.
    """
    return [
        RolloutRequest(
            request_id=f"{round_name}/{index:05d}/{sample:03d}",
            group_id=f"{round_name}/{index:05d}",
            prompt_id=row.prompt_id,
            sample_index=sample,
            seed=seed,
            prompt=row.prompt,
            negative_prompt=str(row.metadata.get("negative_prompt") or rollout.negative_prompt),
            height=rollout.height,
            width=rollout.width,
            schedule=schedule,
            plan=plan,
            guidance_scale=rollout.guidance_scale,
            metadata=row.metadata,
            num_frames=rollout.num_frames,
            frame_rate=rollout.frame_rate,
        )
        for index, row in enumerate(rows)
        for sample in range(samples)
    ]
