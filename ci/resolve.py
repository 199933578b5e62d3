"""Resolves every set of pins against a package index, for the machine and Python that its image runs on.

    python ci/resolve.py [SET ...] [--report FILE.json]

Sets are described in dockerfiles/constraints/sets.toml. The product's requirements (pyproject.toml), the extras and the
engines of a set are resolved with `pip install --dry-run`, the set's pins as constraints. The outcome must be the pins,
exactly: a package without a pin, a pin that nothing needs, a pin that the index does not have or that contradicts
another one are problems. What an index cannot give (a vendor's own build, a source distribution) is an exception with a
reason; an exception that the index made unnecessary is a problem too. Needs a network; nothing is installed.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from ci.pin_sets import SETS, IndexGap, PinSet, read_pins, read_sets
from ci.stand_in import write_stand_in

ROOT = Path(__file__).resolve().parents[1]
OURS_ALONE = ("PIP_FIND_LINKS", "PIP_EXTRA_INDEX_URL", "PIP_CONSTRAINT", "PIP_NO_INDEX", "PIP_REQUIRE_VIRTUALENV")
"""Settings of pip that would let something else than the index decide. PIP_INDEX_URL stays: it names the index."""
Runner = Callable[[Mapping[str, str], Sequence[str]], "subprocess.CompletedProcess[str]"]
"""Runs pip with marker values replaced: (markers, arguments) -> what came of it."""


@dataclass
class Outcome:
    """What came of one set on one machine; `resolved` is name -> version as pip would install them."""

    name: str
    python: str
    machine: str
    resolved: dict[str, str] = field(default_factory=dict)
    exceptions: list[dict[str, Any]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def wanted(root: Path, pins: PinSet) -> list[str]:
    """Requirements of the product, its build and the set's extras, and the set's own."""
    pyproject = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    project, extras = pyproject["project"], pyproject["project"].get("optional-dependencies", {})
    found = [*pyproject["build-system"]["requires"], *project["dependencies"], *pins.requirements]
    found += [one for name in pins.extras for one in extras[name]]
    for name in pins.requirement_files:
        found += (root / name).read_text(encoding="utf-8").splitlines()
    return found


def target(pins: PinSet, machine: str) -> tuple[dict[str, str], list[str]]:
    """(marker values, pip's options) that stand for the image's machine and Python."""
    markers = {
        "python_version": pins.python,
        "python_full_version": f"{pins.python}.9",
        "platform_machine": machine,
        "platform_system": "Linux",
        "sys_platform": "linux",
        "os_name": "posix",
    }
    tags = [f"manylinux_2_{minor}_{machine}" for minor in range(pins.glibc, 4, -1)]
    tags += [f"{old}_{machine}" for old in ("manylinux2014", "manylinux2010", "manylinux1")]
    options = ["--python-version", pins.python, "--implementation", "cp"]
    return markers, [*options, *(part for tag in tags for part in ("--platform", tag))]


def resolve(root: Path, pins: PinSet, machine: str, run: Runner) -> Outcome:
    """Resolve one set for one machine, and compare with its pins and exceptions."""
    outcome = Outcome(pins.name, pins.python, machine)
    exceptions = [one for one in pins.exceptions if not one.machines or machine in one.machines]
    outcome.exceptions = [dataclasses.asdict(one) for one in exceptions]
    outcome.problems += unnecessary(pins, machine, exceptions, run)
    markers, options = target(pins, machine)
    with tempfile.TemporaryDirectory() as scratch:
        for one in exceptions:
            write_stand_in(Path(scratch), one.package, one.version, one.requires)
        requirements, report = Path(scratch, "requirements.txt"), Path(scratch, "report.json")
        requirements.write_text("\n".join(wanted(root, pins)) + "\n", encoding="utf-8")
        arguments = ["install", "--dry-run", "--ignore-installed", "--only-binary=:all:", *options]
        arguments += ["--find-links", scratch, "--report", str(report)]
        arguments += ["--constraint", str(root / pins.path), "--requirement", str(requirements)]
        done = run(markers, arguments)
        if done.returncode:
            outcome.problems.append(f"pip cannot resolve it: {reason(done)}")
            return outcome
        installed = json.loads(report.read_text(encoding="utf-8"))["install"]
    for entry in installed:
        outcome.resolved[canonicalize_name(entry["metadata"]["name"])] = entry["metadata"]["version"]
    outcome.problems += unpinned(root, pins, outcome.resolved)
    return outcome


def unnecessary(pins: PinSet, machine: str, exceptions: Iterable[IndexGap], run: Runner) -> Iterator[str]:
    """Exceptions that the index has caught up with, or that name what is nowhere."""
    for one in exceptions:
        wheels = offered(pins, machine, one.package, ["--only-binary=:all:"], run)
        everything = offered(pins, machine, one.package, [], run)
        where = f"exception '{one.package}' ({one.version}, {one.kind})"
        if one.version in wheels:
            yield f"{where} is not needed any more: the index has a wheel; remove it from {SETS}"
        elif one.kind == "absent" and one.version in everything:
            yield f"{where}: the index has a source distribution: make it kind 'sdist'"
        elif one.kind == "sdist" and one.version not in everything:
            yield f"{where}: the index has no such version at all"


def offered(pins: PinSet, machine: str, package: str, options: Sequence[str], run: Runner) -> list[str]:
    """Versions of a package that the index has for the machine."""
    markers, tags = target(pins, machine)
    done = run(markers, ["index", "versions", package, "--json", "--pre", *options, *tags])
    if done.returncode and "No matching distribution found" not in done.stderr:
        raise RuntimeError(f"pip index versions {package}: {reason(done)}")
    return list(json.loads(done.stdout)["versions"]) if not done.returncode else []


def unpinned(root: Path, pins: PinSet, resolved: Mapping[str, str]) -> Iterator[str]:
    """Resolved packages without a pin."""
    known = read_pins(root / pins.path)
    for name, version in sorted(resolved.items()):
        if name not in known:
            yield f"'{name}' has no pin: add {name}=={version} to {pins.path}"


def unused(root: Path, pins: PinSet, outcomes: Sequence[Outcome]) -> Iterator[str]:
    """Pins that nothing needs on any of the set's machines; none where one of them did not resolve."""
    if not all(outcome.resolved for outcome in outcomes):
        return
    used = {name for outcome in outcomes for name in outcome.resolved}
    for name, version in read_pins(root / pins.path).items():
        if name not in used:
            yield f"nothing needs {name}=={version}: remove it from {pins.path}"


def uncovered(pins: PinSet, known: Mapping[str, str]) -> Iterator[str]:
    """Exceptions whose version is not the pinned one, so that the image would get something else."""
    for one in pins.exceptions:
        pin = known.get(canonicalize_name(one.package))
        if pin is None or not Requirement(f"x=={pin}").specifier.contains(one.version, prereleases=True):
            yield f"exception '{one.package}' is version {one.version}, but {pins.path} pins {pin or 'nothing'}"


def reason(done: subprocess.CompletedProcess[str]) -> str:
    """pip's own words: its errors, and which requirements contradict each other."""
    errors = [line.strip() for line in done.stderr.splitlines() if line.startswith("ERROR")]
    _, _, conflict = (done.stdout + done.stderr).partition("The conflict is caused by:\n")
    told = [*errors, *(line.strip() for line in conflict.partition("\n\n")[0].splitlines())]
    return "; ".join(told) or done.stderr.strip() or f"exit status {done.returncode}"


def run_pip(markers: Mapping[str, str], arguments: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Run this interpreter's pip, with no configuration of the machine but its index and certificates."""
    environment = {name: value for name, value in os.environ.items() if name not in OURS_ALONE}
    environment |= {"PIP_CONFIG_FILE": os.devnull, "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    command = [sys.executable, "-m", "ci.pip_target", json.dumps(markers), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, env=environment)


def resolve_set(root: Path, pins: PinSet, run: Runner) -> list[Outcome]:
    """All machines of a set; what concerns the set as a whole is a problem of the first."""
    outcomes = [resolve(root, pins, machine, run) for machine in pins.machines]
    outcomes[0].problems += [*uncovered(pins, read_pins(root / pins.path)), *unused(root, pins, outcomes)]
    return outcomes


def main(argv: Sequence[str] | None = None, root: Path = ROOT, run: Runner = run_pip) -> int:
    """Print what came of each set; 1 if there are problems, 2 for a set that does not exist."""
    parser = argparse.ArgumentParser(prog="ci/resolve.py", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("sets", metavar="SET", nargs="*", help="sets to resolve; all if none is named")
    parser.add_argument("--report", metavar="FILE.json", help="write everything that was found")
    arguments = parser.parse_args(sys.argv[1:] if argv is None else argv)
    known = read_sets(root)
    unknown = [name for name in arguments.sets if name not in known]
    if unknown:
        print(f"no such set: {', '.join(unknown)}; there are {', '.join(known)}")
        return 2
    outcomes: list[Outcome] = []
    for name in arguments.sets or known:
        for outcome in resolve_set(root, known[name], run):
            print(summary(outcome), flush=True)
            outcomes.append(outcome)
    if arguments.report:
        Path(arguments.report).write_text(json.dumps([dataclasses.asdict(one) for one in outcomes], indent=2) + "\n")
    return 1 if any(outcome.problems for outcome in outcomes) else 0


def summary(outcome: Outcome) -> str:
    """A few lines for people."""
    head = f"{outcome.name} (Python {outcome.python}, {outcome.machine}): {len(outcome.resolved)} packages, "
    lines = [f"{head}{len(outcome.exceptions)} exceptions, {len(outcome.problems)} problems"]
    lines += [f"  exception {one['package']}=={one['version']}: {one['reason']}" for one in outcome.exceptions]
    return "\n".join([*lines, *(f"  PROBLEM {problem}" for problem in outcome.problems)])


if __name__ == "__main__":
    sys.exit(main())
