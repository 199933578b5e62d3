"""Wheels without contents that stand for packages which a package index does not carry, so that the rest can resolve.

A stand-in says of a package what the real one's metadata says: name, version, requirements. Only a resolver reads it.
"""

from __future__ import annotations

import zipfile
from collections.abc import Sequence
from pathlib import Path

WHEEL = "Wheel-Version: 1.0\nGenerator: stand-in\nRoot-Is-Purelib: true\nTag: py3-none-any\n"


def write_stand_in(folder: Path, name: str, version: str, requires: Sequence[str]) -> Path:
    """Write a wheel that holds metadata alone.

    Args:
        folder: an existing folder, which a resolver is then given with ``--find-links``.
        name: of the distribution.
        version: may have a local part ('2.10.0+cpu').
        requires: requirements as in ``Requires-Dist``, markers included.
    """
    stem = f"{name.replace('-', '_')}-{version}"
    metadata = [f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}"]
    files = {
        "METADATA": "\n".join([*metadata, *(f"Requires-Dist: {one}" for one in requires)]) + "\n",
        "WHEEL": WHEEL,
    }
    record = "".join(f"{stem}.dist-info/{file},,\n" for file in (*files, "RECORD"))
    path = folder / f"{stem}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        for file, text in (*files.items(), ("RECORD", record)):
            wheel.writestr(f"{stem}.dist-info/{file}", text)
    return path
