"""One name, 'dataset', for the engines of both kinds of model."""

from __future__ import annotations

from omni_backends.rollout.native.base import InProcessEngine
from omni_portable.config.kinds import trained_kind
from omni_portable.models.setup import EngineSetup


def dataset_engine(setup: EngineSetup) -> InProcessEngine:
    """The engine for the kind of model that the recipe's algorithm trains."""
    if trained_kind(setup.config) == "autoregressive":
        from omni_backends.rollout.dataset.tokens import DatasetTokenEngine

        return DatasetTokenEngine(setup)
    from omni_backends.rollout.dataset.engine import DatasetRolloutEngine

    return DatasetRolloutEngine(setup)
