"""What a train engine refuses before it loads anything, and before it trains; the same for every engine."""

from __future__ import annotations

from omni_portable.contracts.errors import CapabilityError, ConfigError
from omni_portable.contracts.tokens import AnyAlgorithm
from omni_portable.models.setup import EngineSetup


def check_config(setup: EngineSetup, engine: str) -> None:
    """Refuse settings of `model.lora` and `actor` that cannot work.

    Args:
        engine: name for messages.

    Raises:
        CapabilityError: an option that no train engine serves, or one that the algorithm needs and that is off.
        ConfigError: a value out of its range.
    """
    lora, actor = setup.config.model.lora, setup.config.actor
    if lora.rank and lora.dropout:
        raise CapabilityError(
            f"model.lora.dropout is {lora.dropout}; train engine '{engine}' replays without dropout, since log-probs "
            "under dropout are not those of the rollout",
            remedy="set model.lora.dropout=0",
        )
    if not 0.0 <= actor.ema_decay < 1.0:
        raise ConfigError(f"actor.ema_decay is {actor.ema_decay}; it must be at least 0 and below 1")
    if setup.requires.ema and actor.ema_decay == 0.0:
        raise CapabilityError(
            "the algorithm requires an average of the weights, but actor.ema_decay is 0",
            remedy="set actor.ema_decay, for example to 0.999",
        )
    for name in ("grad_clip", "warmup_steps", "micro_batch_size"):
        if getattr(actor, name) < 0:
            raise ConfigError(f"actor.{name} is {getattr(actor, name)}; it must be at least 0")


def check_requires(algorithm: AnyAlgorithm, setup: EngineSetup) -> None:
    """Raise CapabilityError where the algorithm requires a policy that the engine was not built with."""
    for name in ("reference_policy", "old_policy", "ema", "teacher", "fake_score"):
        if getattr(algorithm.requires, name) and not getattr(setup.requires, name):
            raise CapabilityError(
                f"algorithm '{algorithm.name}' requires {name}, but the train engine was built without it",
                remedy="build the engine with EngineSetup(requires=algorithm.requires)",
            )
