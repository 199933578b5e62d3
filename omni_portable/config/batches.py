"""The arithmetic of batch sizes: how samples become mini-batches, micro-batches and optimizer steps."""

from __future__ import annotations

import math
from dataclasses import dataclass

from omni_portable.config.convert import Source
from omni_portable.config.schema import RunConfig
from omni_portable.contracts import registry
from omni_portable.contracts.errors import ConfigError


@dataclass(frozen=True)
class Batches:
    """Sizes and counts of one rollout round.

    Args:
        prompts / samples_per_prompt / samples: of one rollout; samples is their product.
        trained: samples of a rollout that are trained on (algorithms on pairs keep two per prompt).
        unit: samples that stay together in every batch (2 for pairs, rollout.n where whole groups are compared).
        pack_size / packs: requests per rollout forward (at most), and packs per rollout.
        mini_batch_size / mini_batches: samples per optimizer step, and optimizer steps per pass over the rollout.
        micro_batch_size / micro_batches: samples per actor forward, and micro-batches per mini-batch.
        epochs: passes over the rollout.
        aligned: every micro-batch holds the same samples in the same rows as a rollout pack did, which is what makes
            on-policy ratios exactly 1.
    """

    prompts: int
    samples_per_prompt: int
    samples: int
    trained: int
    unit: int
    pack_size: int
    packs: int
    mini_batch_size: int
    mini_batches: int
    micro_batch_size: int
    micro_batches: int
    epochs: int
    aligned: bool

    @property
    def optimizer_steps(self) -> int:
        """Per rollout."""
        return self.mini_batches * self.epochs


def resolve_batches(config: RunConfig) -> Batches:
    """Fill in the defaults (0 means: everything, or as the rollout packs) and count."""
    samples = config.data.train_batch_size * config.rollout.n
    trained, unit = trained_samples(config)
    mini = config.actor.mini_batch_size or trained
    pack = min(config.rollout.max_num_seqs, samples)
    micro = min(config.actor.micro_batch_size or config.rollout.max_num_seqs, mini)
    return Batches(
        prompts=config.data.train_batch_size,
        samples_per_prompt=config.rollout.n,
        samples=samples,
        trained=trained,
        unit=unit,
        pack_size=pack,
        packs=math.ceil(samples / pack),
        mini_batch_size=mini,
        mini_batches=math.ceil(trained / mini),
        micro_batch_size=micro,
        micro_batches=math.ceil(mini / micro),
        epochs=config.actor.epochs,
        aligned=trained == samples and micro == pack and (mini == samples or mini % pack == 0),
    )


def trained_samples(config: RunConfig) -> tuple[int, int]:
    """Samples of a rollout that the algorithm trains on, at most, and how many of them belong together."""
    name = config.algorithm.get("name")
    capabilities = registry.spec("algorithm", name).capabilities if name in registry.names("algorithm") else {}
    kept = int(capabilities.get("trained_per_group", config.rollout.n))
    together = kept if "trained_per_group" in capabilities or capabilities.get("whole_groups") else 1
    return config.data.train_batch_size * kept, together


def check_batches(config: RunConfig, source: Source) -> None:
    """Refuse sizes that would leave a smaller last mini-batch or a micro-batch larger than its mini-batch.

    Raises:
        ConfigError: says which sizes would do.
    """
    actor = config.actor
    samples, unit = trained_samples(config)
    mini = actor.mini_batch_size
    if mini and (samples % mini or mini % unit):
        prompts = config.data.train_batch_size
        whole = f"; the {unit} samples of a prompt must stay in one mini-batch" if unit > 1 else ""
        raise ConfigError(
            f"{source.describe('actor.mini_batch_size', mini)}: a rollout trains on {samples} samples "
            f"(data.train_batch_size={prompts} prompts x {samples // prompts}), which are no whole number of "
            f"mini-batches of {mini}{whole}",
            remedy="use one of the sizes listed here, or 0 for all samples",
            choices=[str(size) for size in nearby_divisors(samples, mini) if size % unit == 0],
        )
    micro = actor.micro_batch_size
    if micro > (mini or samples):
        raise ConfigError(
            f"{source.describe('actor.micro_batch_size', micro)}: a micro-batch of {micro} samples is larger than its "
            f"mini-batch of {mini or samples}",
            remedy=f"use at most {mini or samples}, or 0 for rollout.max_num_seqs",
        )


def nearby_divisors(number: int, wanted: int, count: int = 6) -> list[int]:
    """The divisors of `number` closest to `wanted`, in ascending order."""
    divisors = {d for i in range(1, math.isqrt(number) + 1) if number % i == 0 for d in (i, number // i)}
    return sorted(sorted(divisors, key=lambda divisor: (abs(divisor - wanted), divisor))[:count])
