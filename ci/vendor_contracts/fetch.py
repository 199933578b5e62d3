"""Brings the sources of a package here, through pip, without running or importing any of it.

Of a wheel, pip saves the archive. For a source distribution pip would run its `setup.py` to learn its metadata; a build
requirement that cannot be met makes pip stop before that, with the unpacked source left in its temporary folder.
Python files and named libraries are kept in `build/vendor`, everything else is deleted.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterable
from pathlib import Path

from ci.vendor_contracts.packages import Package
from ci.vendor_contracts.tree import FolderFiles, Tree, WheelFiles, python_digest

CACHE = "build/vendor"
PYTHON = "3.12"
TIMEOUT_S = 900
IMPOSSIBLE = ("setuptools", "hatchling", "flit-core", "poetry-core", "meson-python", "scikit-build-core", "wheel")
"""Build requirements of which a version is asked for that does not exist."""


class FetchError(Exception):
    """pip could not bring a package; the message holds what it said."""


def fetch(root: Path, package: Package, version: str) -> Tree:
    """The package's tree, from the cache where it is there.

    Raises:
        FetchError: the index has no such version or no such file.
    """
    folder = root / CACHE
    folder.mkdir(parents=True, exist_ok=True)
    kept = folder / f"{package.distribution}-{version}-{package.form}.zip"
    said = kept.with_suffix(".json")
    if not (kept.is_file() and said.is_file()):
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            fetched = _wheel if package.form == "wheel" else _source
            origin = fetched(package, version, Path(scratch), kept)
        said.write_text(json.dumps(origin), encoding="utf-8")
    facts = json.loads(said.read_text(encoding="utf-8"))
    return Tree(package.distribution, version, facts["origin"], facts["sha256"], WheelFiles(kept, package.only))


def _wheel(package: Package, version: str, scratch: Path, kept: Path) -> dict[str, str]:
    platforms = [argument for platform in package.platforms for argument in ("--platform", platform)]
    target = ["--only-binary", ":all:", "--implementation", "cp", "--python-version", PYTHON, *platforms]
    result = _pip([*target, "--dest", str(scratch), f"{package.distribution}=={version}"], scratch)
    wheels = list(scratch.glob("*.whl"))
    if len(wheels) != 1:
        raise FetchError(f"no wheel of {package.distribution} {version}: {_error(result)}")
    digest = hashlib.sha256(wheels[0].read_bytes()).hexdigest()
    files = WheelFiles(wheels[0])
    _keep(kept, ((name, files.read(name)) for name in files.names() if _is_wanted(name, package)))
    return {"origin": wheels[0].name, "sha256": digest}


def _source(package: Package, version: str, scratch: Path, kept: Path) -> dict[str, str]:
    constraints = scratch / "impossible.txt"
    constraints.write_text("".join(f"{name}==0.0.0.dev0\n" for name in IMPOSSIBLE), encoding="utf-8")
    stop = ["--no-clean", "--no-binary", ":all:", "--build-constraint", str(constraints)]
    result = _pip([*stop, "--dest", str(scratch), f"{package.distribution}=={version}"], scratch)
    found = list(scratch.glob("pip-download-*/*/PKG-INFO"))
    if len(found) != 1:
        raise FetchError(f"no source of {package.distribution} {version}: {_error(result)}")
    files = FolderFiles(found[0].parent)
    _keep(kept, ((name, files.read(name)) for name in files.names() if _is_wanted(name, package)))
    origin = f"{package.distribution}-{version}.tar.gz"
    shutil.rmtree(found[0].parent)
    return {"origin": origin, "sha256": python_digest(WheelFiles(kept))}


def _pip(arguments: list[str], scratch: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--no-deps", *arguments]
    environment = {**os.environ, "TMPDIR": str(scratch)}
    return subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, env=environment, check=False)


def _error(result: subprocess.CompletedProcess[str]) -> str:
    lines = [line for line in result.stderr.splitlines() if line.startswith("ERROR")]
    return "; ".join(lines) or result.stderr.strip()[-500:]


def _is_wanted(name: str, package: Package) -> bool:
    return name.endswith((".py", ".pyi")) or name in package.operators.values()


def _keep(kept: Path, files: Iterable[tuple[str, bytes]]) -> None:
    partial = kept.with_suffix(".partial")
    with zipfile.ZipFile(partial, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in sorted(files):
            archive.writestr(name, content)
    partial.replace(kept)
