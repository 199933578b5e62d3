"""Ray or TransferQueue asked for and not installed: said before anything is begun, with what to do about it."""

from __future__ import annotations

import importlib.metadata
import sys
from pathlib import Path

import pytest

RAY, QUEUE = "launcher.name=ray", "dataplane.name=transferqueue"
LATE = ("omni_backends.launch.ray.", "omni_backends.dataplane.transferqueue.", "transfer_queue")


@pytest.fixture
def without(monkeypatch: pytest.MonkeyPatch):
    """`without('ray', ...)`: these modules cannot be imported, and no distribution of such a name is known."""
    real = importlib.metadata.version

    def hide(*modules: str, distribution: bool = True) -> None:
        for name in [name for name in sys.modules if name.startswith(LATE)]:
            monkeypatch.delitem(sys.modules, name)
        for name in modules:
            monkeypatch.setitem(sys.modules, name, None)

        def version(name: str) -> str:
            if distribution and name.lower().replace("queue", "_queue") in modules:
                raise importlib.metadata.PackageNotFoundError(name)
            return real(name)

        monkeypatch.setattr(importlib.metadata, "version", version)
        monkeypatch.setattr("omni_backends.dataplane.transferqueue.version", version)

    return hide


@pytest.mark.parametrize(
    ("modules", "overrides", "problem", "extra"),
    [
        (("ray",), (RAY,), "needs the module 'ray', which is not installed", "ray"),
        (("ray", "transfer_queue"), (QUEUE,), "needs TransferQueue 0.1.11, which is not installed", "transferqueue"),
        (("transfer_queue",), (RAY, QUEUE), "needs TransferQueue 0.1.11, which is not installed", "transferqueue"),
    ],
)
def test_a_missing_package_is_refused_before_there_is_a_run(
    without, train, tmp_path: Path, modules: tuple[str, ...], overrides: tuple[str, ...], problem: str, extra: str
) -> None:
    without(*modules)
    outcome = train(tmp_path / "run", *overrides)
    assert outcome.code == 2
    assert problem in outcome.err
    assert f"pip install 'omni-portable[{extra}]'" in outcome.err
    assert not (tmp_path / "run").exists()


def test_a_data_plane_whose_ray_is_broken_is_refused_before_there_is_a_run(without, train, tmp_path: Path) -> None:
    """TransferQueue is known to be installed, what it runs on cannot be imported."""
    pytest.importorskip("transfer_queue")
    without("ray", distribution=False)
    outcome = train(tmp_path / "run", QUEUE)
    assert (outcome.code, "needs the module 'ray', which is not installed" in outcome.err) == (2, True), outcome.err
    assert not (tmp_path / "run").exists()


def test_a_dry_run_says_what_is_missing(without, cli, workshop: Path) -> None:
    without("ray", "transfer_queue")
    outcome = cli("train", workshop / "recipe.yaml", "--dry-run", RAY)
    assert outcome.code == 0
    assert "launcher.name=ray: ray is not installed: pip install 'omni-portable[ray]'" in outcome.out
