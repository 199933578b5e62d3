"""How the contract check gets packages from the index, and what it keeps of them."""

from __future__ import annotations

import subprocess
import zipfile
from pathlib import Path

import pytest

from ci.vendor_contracts import fetch
from ci.vendor_contracts.packages import Package
from ci.vendor_contracts.tree import WheelFiles, python_digest
from tests.ci.contract_trees import MemoryFiles, write


def _completed(code: int, error: str) -> subprocess.CompletedProcess[str]:
    return subprocess.CompletedProcess([], code, "", error)


def test_wheels_are_kept_without_what_nobody_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def pip(arguments: list[str], scratch: Path) -> subprocess.CompletedProcess[str]:
        calls.append(arguments)
        with zipfile.ZipFile(scratch / "vendor-1.0-py3-none-any.whl", "w") as archive:
            for name in ("v/a.py", "v/b.pyi", "v/lib.so", "v/big.so", "v/data.bin"):
                archive.writestr(name, name)
        return _completed(0, "")

    monkeypatch.setattr(fetch, "_pip", pip)
    package = Package("vendor", operators={"v": "v/lib.so"})
    tree = fetch.fetch(tmp_path, package, "1.0")
    assert tree.names == {"v/a.py", "v/b.pyi", "v/lib.so"}
    assert tree.origin == "vendor-1.0-py3-none-any.whl"
    assert len(tree.sha256) == 64
    assert fetch.fetch(tmp_path, package, "1.0") == tree
    assert len(calls) == 1
    assert "vendor==1.0" in calls[0]
    assert fetch.fetch(tmp_path, Package("vendor", only=("v/a.py",)), "1.0").names == {"v/a.py"}


def test_sources_are_read_though_nothing_is_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def pip(arguments: list[str], scratch: Path) -> subprocess.CompletedProcess[str]:
        assert "==0.0.0.dev0" in (scratch / "impossible.txt").read_text(encoding="utf-8")
        assert "--no-clean" in arguments
        write(scratch / "pip-download-1" / "vendor_2", {"PKG-INFO": "", "setup.py": "1/0", "v/__init__.py": "x = 1"})
        return _completed(1, "ERROR: Failed to build 'vendor'")

    monkeypatch.setattr(fetch, "_pip", pip)
    tree = fetch.fetch(tmp_path, Package("vendor", form="source"), "1.0")
    assert tree.text("v/__init__.py") == "x = 1"
    assert tree.sha256 == python_digest(MemoryFiles({"setup.py": "1/0", "v/__init__.py": "x = 1"}))


@pytest.mark.parametrize("form", ["wheel", "source"])
def test_what_pip_cannot_bring_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str) -> None:
    monkeypatch.setattr(fetch, "_pip", lambda *_: _completed(1, "WARNING: x\nERROR: No matching distribution\n"))
    with pytest.raises(fetch.FetchError, match=f"no {form} of vendor 9: ERROR: No matching"):
        fetch.fetch(tmp_path, Package("vendor", form=form), "9")  # type: ignore[arg-type]
    assert not list((tmp_path / fetch.CACHE).glob("*.zip"))


def test_wheel_files_can_be_limited(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.whl", "w") as archive:
        archive.writestr("a.py", "1")
        archive.writestr("b.py", "2")
    assert WheelFiles(tmp_path / "a.whl", ["a.py", "gone.py"]).names() == {"a.py"}
