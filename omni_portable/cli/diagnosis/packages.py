"""Installed versions against what this package asks for, read from metadata: nothing is imported, so that a set of
versions which would crash on import is found before it does."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, files, metadata, requires, version

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from omni_portable.cli.diagnosis.check import Check, one_line

PACKAGE = "omni-portable"
UNREADABLE = "of unreadable metadata"
"""Stands for the version of a distribution whose metadata is damaged; it satisfies no specifier."""
COMPANIONS = ("torchvision", "torchaudio", "torchcodec")
"""Packages with compiled parts that only load beside the torch they were built for."""
STAND_INS = {"torchvision": ("omni-portable-cpu-companions", "cpu")}
"""Companion -> what lets its Python part be imported beside a torch of that build (tools/cpu_torch_companions)."""
LIBRARIES = (".so", ".pyd", ".dylib")


def package_checks() -> Iterator[Check]:
    """Python, every requirement, pins of extras, and companions of torch."""
    try:
        wanted_python, wanted = metadata(PACKAGE)["Requires-Python"], requires(PACKAGE) or []
        requirements = [Requirement(text) for text in wanted]
        python = _python(wanted_python)
    except PackageNotFoundError:
        yield Check("packages", "fail", f"{PACKAGE} is not installed", "pip install -e . in its source tree")
        return
    except ValueError as error:
        found = f"the metadata of {PACKAGE} is damaged: {one_line(error)}"
        yield Check("packages", "fail", found, "pip install -e . in its source tree")
        return
    yield python
    base = [r for r in requirements if r.marker is None or r.marker.evaluate({"extra": ""})]
    problems = list(base_problems(base))
    yield from problems
    if not problems:
        yield Check("packages", "ok", f"all {len(base)} requirements are met")
    yield from extra_problems([r for r in requirements if r not in base])
    yield from companion_problems()


def _python(wanted: str | None) -> Check:
    running = platform.python_version()
    if wanted and not SpecifierSet(wanted).contains(running, prereleases=True):
        return Check(
            "python", "fail", f"{running}, but {wanted} is needed", "create the environment with a newer Python"
        )
    return Check("python", "ok", running)


def base_problems(requirements: list[Requirement]) -> Iterator[Check]:
    """Requirements that are missing or of another version."""
    for requirement in requirements:
        pin = f"{requirement.name}{requirement.specifier}"
        found = installed(requirement.name)
        if found is None:
            yield Check(requirement.name, "fail", f"not installed, {pin} is needed", f"pip install '{pin}'")
        elif not requirement.specifier.contains(found, prereleases=True):
            yield Check(requirement.name, "fail", f"version {found}, but {pin} is needed", f"pip install '{pin}'")


def extra_problems(requirements: list[Requirement]) -> Iterator[Check]:
    """Installed packages that none of the extras which name them was tested with; one message per package."""
    for name in dict.fromkeys(requirement.name for requirement in requirements):
        pins = [r for r in requirements if r.name == name]
        found = installed(name)
        if found is None or any(r.specifier.contains(found, prereleases=True) for r in pins):
            continue
        tested = " or ".join(dict.fromkeys(str(r.specifier) for r in pins))
        yield Check(
            name, "warn", f"version {found}; tested are {tested}", f"install the extra for your device ({PACKAGE}[...])"
        )


def companion_problems() -> Iterator[Check]:
    """Companions of torch that were built for another kind of device than torch was."""
    torch = installed("torch")
    if torch is None:
        return
    for name in COMPANIONS:
        found = installed(name)
        if found is not None and _differ(_build(found), _build(torch)) and not _mended(name, _build(torch)):
            remedy = f"pip uninstall {name}, or in the source tree: make setup-engines"
            yield Check(name, "warn", f"version {found} was built for another torch than {torch}", remedy)


def installed(name: str) -> str | None:
    """The installed version of a distribution, or None."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None
    except UnicodeDecodeError:
        return UNREADABLE


def _differ(one: str, other: str) -> bool:
    """Two builds that do not fit. One without a label is the package index's, which on x86-64 Linux is no CPU build."""
    indexed = platform.system() == "Linux" and platform.machine() == "x86_64"
    return one != other and (bool(one and other) or indexed)


def _mended(name: str, torch_build: str) -> bool:
    """Whether a companion of another build can be imported all the same, as `make setup-engines` leaves it."""
    stand_in, build = STAND_INS.get(name, ("", ""))
    if stand_in and build == torch_build and installed(stand_in) is not None:
        return True
    try:
        held = files(name)
    except (PackageNotFoundError, UnicodeDecodeError):
        return False
    return held is not None and not any(file.suffix in LIBRARIES for file in held)


def _build(text: str) -> str:
    """The local part of a version ('cpu' of '2.13.0+cpu')."""
    return text.partition("+")[2]
