"""Which side of a model a recipe trains. Torch-free."""

from __future__ import annotations

from typing import Literal, cast

from omni_portable.config.schema import RunConfig
from omni_portable.contracts import registry

Kind = Literal["diffusion", "autoregressive"]

ALGORITHM_KINDS: dict[str, Kind] = {"diffusion": "diffusion", "token": "autoregressive"}
"""Kind of algorithm -> kind of model that it trains."""


def trained_kind(config: RunConfig) -> Kind:
    """The kind of model that the algorithm trains; without an algorithm, the first kind that the family offers.

    A family that is not registered (its adapter was handed over by other means) is one of diffusion.
    """
    name = config.algorithm.get("name")
    if name in registry.names("algorithm"):
        kind = registry.spec("algorithm", name).capabilities.get("kind")
        if kind in ALGORITHM_KINDS:
            return ALGORITHM_KINDS[kind]
    if config.model.family not in registry.names("model"):
        return "diffusion"
    kinds = registry.spec("model", config.model.family).capabilities.get("kinds", ("diffusion",))
    return cast(Kind, kinds[0])
