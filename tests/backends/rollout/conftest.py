from collections.abc import Callable

import pytest
import torch

from omni_portable.models.weights import make_stream
from tests.support.engines import make_setup
from tests.support.toy_adapter import register_toy


@pytest.fixture(autouse=True)
def toy_family(monkeypatch):
    register_toy(monkeypatch)


@pytest.fixture
def make_engine() -> Callable:
    """Builds an engine over the toy family; keywords as in `make_setup`."""
    from omni_backends.rollout.native.engine import NativeRolloutEngine

    return lambda **changes: NativeRolloutEngine(make_setup(**changes))


@pytest.fixture
def new_weights() -> Callable:
    """A stream of changed weights for an engine, as an actor of the same configuration would send it."""

    def make(engine, change=0.05, lora="own"):
        weights = engine._weights
        tensors = {
            name: tensor.detach() + change * torch.randn(tensor.shape, generator=torch.Generator().manual_seed(i))
            for i, (name, tensor) in enumerate(weights._tensors().items())
        }
        info = weights._lora if lora == "own" else lora
        return make_stream("full" if info is None else "adapter", tensors.items(), info)

    return make
