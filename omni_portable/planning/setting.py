"""What the memory of a run depends on, gathered once."""

from __future__ import annotations

from dataclasses import dataclass

from omni_portable.config.batches import Batches, resolve_batches
from omni_portable.config.plan import stochastic_steps
from omni_portable.config.plugins import algorithm_options
from omni_portable.config.schema import RolloutConfig, RunConfig
from omni_portable.contracts.algorithm import Requires
from omni_portable.models.outline import DTYPE_BYTES, ModelOutline, ModelSizes, Workload

FLOAT = 4
"""Bytes of fp32, in which optimizer state, LoRA matrices, latents and copies of the policy are kept."""


@dataclass(frozen=True)
class Setting:
    """A recipe with its model's sizes.

    Args:
        dtype: of the transformer and, as the families load them, of encoders and VAE.
        attention: kernel family of the trained component, '' where it is not known.
        shards: devices over which the actor's weights and optimizer state are spread; 1 where they are not.
        requires: policies that the algorithm has the engine keep.
        stored_steps: denoising steps of a sample that are recorded and trained on.
        apart: the rollout engine has devices that are not the actor's.
    """

    config: RunConfig
    outline: ModelOutline
    sizes: ModelSizes
    dtype: str
    attention: str
    shards: int
    requires: Requires
    stored_steps: int
    apart: bool = False

    @property
    def itemsize(self) -> int:
        return DTYPE_BYTES[self.dtype]

    @property
    def batches(self) -> Batches:
        return resolve_batches(self.config)

    @property
    def guided(self) -> int:
        """Forward passes per sample: 2 under classifier-free guidance, joined in one batch."""
        return guided_rows(self.config.rollout)

    @property
    def lora_rank(self) -> int:
        return self.config.model.lora.rank

    @property
    def lora_targets(self) -> tuple[str, ...]:
        return tuple(self.config.model.lora.targets) or self.outline.lora_targets

    @property
    def model_elements(self) -> int:
        """Of the transformer's tensors."""
        return self.outline.elements(self.outline.trainable)

    @property
    def trained(self) -> int:
        """Parameters that the optimizer changes."""
        if self.lora_rank:
            return self.sizes.lora_parameters(self.lora_rank, self.lora_targets)
        return self.outline.trainable_parameters

    @property
    def latents(self) -> int:
        """Elements of one sample's latents."""
        return self.sizes.latent_elements(self.config.rollout.height, self.config.rollout.width)

    @property
    def masters(self) -> bool:
        """Are the trained parameters narrower than the fp32 masters that the optimizer updates?"""
        return not self.lora_rank and self.itemsize < FLOAT

    def work(self, samples: int, rollout: RolloutConfig | None = None) -> Workload:
        """A forward pass of `samples` samples, drawn as `rollout` says (the recipe's own if None)."""
        rollout = rollout or self.config.rollout
        return Workload(
            rows=samples * guided_rows(rollout),
            height=rollout.height,
            width=rollout.width,
            dtype=self.dtype,
            lora_rank=self.lora_rank,
            lora_targets=self.lora_targets if self.lora_rank else (),
            checkpointing=self.config.actor.gradient_checkpointing,
            attention=self.attention,
        )


def guided_rows(rollout: RolloutConfig) -> int:
    """Forward passes per sample."""
    return 2 if rollout.guidance_scale != 1.0 else 1


def gather(
    config: RunConfig,
    outline: ModelOutline,
    sizes: ModelSizes,
    dtype: str,
    attention: str,
    shards: int,
    apart: bool = False,
) -> Setting:
    """A setting, with what the algorithm's options say."""
    options = algorithm_options(config)
    requires = getattr(options, "requires", None)
    kept = requires() if callable(requires) else Requires()
    steps = stochastic_steps(options, config.rollout.num_steps)
    stored = config.rollout.num_steps if steps is None else steps
    return Setting(config, outline, sizes, dtype, attention, shards, kept, stored, apart)
