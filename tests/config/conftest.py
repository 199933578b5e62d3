from __future__ import annotations

from pathlib import Path

import pytest

from omni_portable.contracts import registry
from tests.config.fakes import FAKES, RECIPE, FakePoint


@pytest.fixture
def plugins(monkeypatch):
    points = {
        kind: {spec.name: FakePoint(spec.name, spec.target, spec) for spec in specs} for kind, specs in FAKES.items()
    }
    monkeypatch.setattr(registry, "_entry_points", lambda kind: points[kind])


@pytest.fixture
def recipe(tmp_path: Path, plugins) -> str:
    path = tmp_path / "small.yaml"
    path.write_text(RECIPE, encoding="utf-8")
    return str(path)


@pytest.fixture
def write_recipe(tmp_path: Path, plugins):
    def write(text: str, name: str = "other.yaml") -> str:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return str(path)

    return write
