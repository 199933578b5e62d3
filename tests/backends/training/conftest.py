from __future__ import annotations

import pytest

from omni_portable.models import setup as model_setup
from tests.support.toy_adapter import ToyAdapter


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Register the model family 'toy'."""
    real = model_setup.registry.load

    def load(kind: str, name: str) -> object:
        return ToyAdapter if (kind, name) == ("model", "toy") else real(kind, name)

    monkeypatch.setattr(model_setup.registry, "load", load)
