"""From prompts to rollout requests. All randomness comes from (run seed, round), so any round can be made again."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from omni_portable.config.schema import RolloutConfig
from omni_portable.contracts.errors import ConfigError
from omni_portable.contracts.media import MediaArtifact
from omni_portable.contracts.reward import GIVEN_SAMPLE
from omni_portable.contracts.rollout import RolloutRequest, SamplingPlan, Schedule
from omni_portable.contracts.tokens import TokenRequest
from omni_portable.data.prompts import PromptRow


def round_seed(run_seed: int, round_name: str) -> int:
    """A 63-bit seed for one round ('step-12', 'validation', 'probe'), independent of every other round's."""
    digest = hashlib.blake2b(f"{run_seed}/{round_name}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


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

    A row's own 'negative_prompt' wins over rollout.negative_prompt. A row with targets gives one to each sample.

    Raises:
        ConfigError: a row with another number of targets than `samples`.
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
            metadata=sample_metadata(row, sample),
            media=row.media,
            num_frames=rollout.num_frames,
            frame_rate=rollout.frame_rate,
            target=sample_target(row, sample, samples),
        )
        for index, row in enumerate(rows)
        for sample in range(samples)
    ]


def sample_target(row: PromptRow, sample: int, samples: int) -> Mapping[str, MediaArtifact]:
    """What the dataset gives in place of a sample; empty where it is to be drawn."""
    if not row.targets:
        return {}
    if len(row.targets) != samples:
        raise ConfigError(
            f"prompt '{row.prompt_id}' has targets for {len(row.targets)} samples, {samples} are wanted",
            remedy=f"set rollout.n={len(row.targets)}",
        )
    return row.targets[sample]


def sample_metadata(row: PromptRow, sample: int) -> Mapping[str, Any]:
    """The row's other fields; of a given sample also its position."""
    return {**row.metadata, GIVEN_SAMPLE: sample} if row.targets else row.metadata


def make_token_requests(
    rows: Sequence[PromptRow],
    rollout: RolloutConfig,
    *,
    samples: int,
    temperature: float,
    seed: int,
    round_name: str,
) -> list[TokenRequest]:
    """`samples` requests for responses per prompt, those of one prompt adjacent, in prompt order.

    A row's own 'system_prompt' wins over that of the model's options; targets as in :func:`make_requests`.
    """
    return [
        TokenRequest(
            request_id=f"{round_name}/{index:05d}/{sample:03d}",
            group_id=f"{round_name}/{index:05d}",
            prompt_id=row.prompt_id,
            sample_index=sample,
            seed=seed,
            prompt=row.prompt,
            max_new_tokens=rollout.max_new_tokens,
            temperature=temperature,
            top_p=rollout.top_p if temperature else 1.0,
            top_k=rollout.top_k if temperature else 0,
            stop=tuple(rollout.stop),
            metadata=sample_metadata(row, sample),
            media=row.media,
            system_prompt=str(row.metadata.get("system_prompt") or ""),
            target=sample_target(row, sample, samples),
        )
        for index, row in enumerate(rows)
        for sample in range(samples)
    ]
