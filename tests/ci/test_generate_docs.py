"""The reference pages that are made from the code."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Literal

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "ci" / "generate_docs.py"


def load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("ci_generate_docs", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


docs = load()


@dataclass
class Parent:
    kind: Literal["a", "b"] = "a"
    """Which | of
    the two."""


@dataclass
class Child(Parent):
    limit: float | None = None
    """Below <this>."""


@dataclass
class Undocumented:
    size: int = 1


def test_pages_agree_with_the_code() -> None:
    assert docs.drift(ROOT) == []


@pytest.mark.parametrize(
    "page",
    [
        "README.md",
        *(f"docs/{name}.md" for name in ("configuration", "plugins", "recipes", "models", "algorithms")),
        "docs/algorithms/flow_grpo.md",
    ],
)
def test_a_change_in_a_page_is_drift(tmp_path: Path, page: str) -> None:
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    shutil.copy(ROOT / "README.md", tmp_path)
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    assert docs.drift(tmp_path) == []
    path = tmp_path / page
    path.write_text(path.read_text(encoding="utf-8").replace("flow", "flaw"), encoding="utf-8")
    assert any("flaw" in line for line in docs.drift(tmp_path))


def test_a_missing_page_is_drift(tmp_path: Path) -> None:
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    assert len(docs.drift(tmp_path)) > 100


def test_table_of_keys() -> None:
    assert docs.key_table(Child, "x.")[2:] == [
        "| `x.kind` | `a`, `b` | `a` | Which \\| of the two. |",
        "| `x.limit` | number or null | `null` | Below \\<this>. |",
    ]


def test_a_key_without_documentation_is_refused() -> None:
    with pytest.raises(ValueError, match="Undocumented: no string literal under size"):
        docs.key_table(Undocumented, "")


def test_limits_of_values_are_told() -> None:
    assert docs.allowed("actor.ema_decay") == " Must be at least 0 and below 1."
    assert docs.allowed("reward.on_error") == " One of `fail`, `drop_group`."
    assert docs.allowed("data.train") == ""


def test_every_kind_of_plugin_is_described() -> None:
    from omni_portable.contracts.registry import GROUPS

    assert set(docs.WHERE) == set(GROUPS)


def test_it_runs_without_torch() -> None:
    probe = (
        "import runpy, sys\nsys.argv = [sys.argv[1], '--check']\n"
        "try: runpy.run_path(sys.argv[0], run_name='__main__')\n"
        "except SystemExit as end: assert end.code == 0, end.code\n"
        "assert 'torch' not in sys.modules"
    )
    run = subprocess.run([sys.executable, "-c", probe, str(SCRIPT)], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
