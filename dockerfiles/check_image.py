"""Fails the build of an image whose packages are not the pinned ones: check_image.py CONSTRAINTS [NAME ...]

Every installed package that has a pin must have that version; what follows the file must not be installed. That
nothing is missing is `omni-portable doctor`'s to say. Needs `packaging` besides the standard library.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from packaging.specifiers import SpecifierSet


def problems(text: str, unwanted: Collection[str] = ()) -> Iterator[str]:
    """One sentence for each pin that the installation does not keep, and for each unwanted package in it.

    Args:
        text: lines NAME==VERSION and comments.
        unwanted: names.
    """
    for line in text.splitlines():
        name, equal, pin = line.partition("#")[0].strip().partition("==")
        found = installed(name) if equal and name not in unwanted else None
        if found is not None and not SpecifierSet(f"=={pin}").contains(found, prereleases=True):
            yield f"{name}: {found} is installed, but {pin} is pinned"
    for name in unwanted:
        if (found := installed(name)) is not None:
            yield f"{name}: {found} is installed, but it must be removed"


def installed(name: str) -> str | None:
    """The version of an installed distribution, or None."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def main(argv: Sequence[str] | None = None) -> int:
    """Print the problems; 1 if there are any, 2 without a file."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not arguments:
        print(__doc__)
        return 2
    found = list(problems(Path(arguments[0]).read_text(encoding="utf-8"), arguments[1:]))
    print("\n".join(found) if found else "every installed package has its pinned version")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
