"""What every Dockerfile of ours must keep, whatever it is for. A rule yields one sentence for each breach."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from itertools import pairwise

from ci.dockerfile import Dockerfile, Instruction, Stage, commands, exec_form, expand

CONSTRAINTS = "dockerfiles/constraints"
SECRET = re.compile(r"(?i)(token|secret|passw(or)?d|api_?key|access_?key|private_?key|credential|auth_?key)")
SECRET_FILE = re.compile(
    r"(?i)(^|/)(\.env|\.netrc|\.npmrc|\.pypirc|\.ssh|id_(rsa|ed25519)|\.aws|\.docker|[^/ ]*\.pem)\b"
)
CREDENTIALS = re.compile(r"://[^/\s:@]+:[^/\s@]+@")
LABELS = tuple(f"org.opencontainers.image.{name}" for name in ("title", "description", "licenses"))
UNCHECKED = {
    "--trusted-host": "pip",
    "--no-check-certificate": "wget",
    "--insecure": "curl",
    "-k": "curl",
    "--allow-unauthenticated": "apt-get",
    "--break-system-packages": "pip",
}
"""Options that turn off a check, and whose they are."""
HEALTH = ["omni-portable", "doctor", "--quick"]


def bases(file: Dockerfile) -> Iterator[str]:
    """Every FROM is an earlier stage, or an image with a digest or a tag that is not 'latest'."""
    defaults = {name: value for name, value in file.args.items() if value is not None}
    known: set[str] = set()
    for stage in file.stages:
        image = expand(stage.image, defaults)
        if "$" in image:
            prefix = image.partition("$")[0]
            if not any(name.startswith(prefix) for name in known if prefix):
                yield f"line {stage.line}: FROM {stage.image} has no value to check: give the argument a default"
        elif image not in known:
            name, _, digest = image.partition("@")
            tag = name.rpartition("/")[2].partition(":")[2]
            if tag in ("", "latest") and not re.fullmatch(r"sha256:[0-9a-f]{64}", digest):
                yield f"line {stage.line}: FROM {stage.image} is not pinned: name a tag other than 'latest'"
        known.add(stage.name)


def constraints(file: Dockerfile) -> Iterator[str]:
    """Every pip installs with the constraints of dockerfiles/constraints, copied before it."""
    copied: dict[str, set[str]] = {}
    for stage in file.stages:
        here = set(copied.get(stage.image, ()))
        for one in stage.instructions:
            if one.keyword == "COPY" and "--from" not in one.value:
                here |= set(_copied_constraints(one))
            elif one.keyword == "RUN":
                for command in commands(one):
                    yield from _pip_problems(one, command, here)
        copied[stage.name] = here
    if not any(copied.values()):
        yield f"nothing is copied from {CONSTRAINTS}"


def _copied_constraints(one: Instruction) -> Iterator[str]:
    *sources, target = [part for part in one.value.split() if not part.startswith("--")]
    for source in sources:
        if source.startswith(f"{CONSTRAINTS}/"):
            yield target + source.rpartition("/")[2] if target.endswith("/") else target


def _pip_problems(one: Instruction, command: list[str], copied: set[str]) -> Iterator[str]:
    shown = " ".join(command)[:80]
    if any(word in ("conda", "mamba", "easy_install", "poetry", "pipx", "uv") for word in command[:1]):
        yield f"line {one.line}: '{shown}' installs past pip, so without our constraints"
    places = [index for index, word in enumerate(command) if re.fullmatch(r"(.*/)?pip3?(\.\d+)?", word)]
    verbs = [word for word in command[places[0] + 1 :] if not word.startswith("-")] if places else []
    if verbs[:1] not in (["install"], ["download"], ["wheel"]):
        return
    given = [value for word, value in pairwise(command) if word in ("--constraint", "-c")]
    given += [word.partition("=")[2] for word in command if word.startswith("--constraint=")]
    if not given:
        yield f"line {one.line}: '{shown}' has no --constraint"
    yield from (f"line {one.line}: '{path}' is not copied from {CONSTRAINTS}" for path in given if path not in copied)


def secrets(file: Dockerfile) -> Iterator[str]:
    """No name or value that looks like a secret, and no file that holds one."""
    for name in file.args:
        if SECRET.search(name):
            yield f"ARG {name} looks like a secret: an argument stays in the image's history"
    for stage in file.stages:
        for one in stage.instructions:
            for name in stage.settings(one.keyword) if one.keyword in ("ARG", "ENV", "LABEL") else ():
                if SECRET.search(name):
                    yield f"line {one.line}: {one.keyword} {name} looks like a secret: it stays in the image"
            if one.keyword in ("COPY", "ADD") and SECRET_FILE.search(one.value):
                yield f"line {one.line}: '{one.value}' copies a file that holds secrets"
            if CREDENTIALS.search(one.value):
                yield f"line {one.line}: an address with a password"


def user(file: Dockerfile) -> Iterator[str]:
    """The image does not run as root."""
    users = file.final.each("USER")
    name = users[-1].value.partition(":")[0].strip() if users else ""
    if not users:
        yield "no USER: the image runs as root"
    elif name in ("root", "0") or not re.fullmatch(r"[1-9]\d*", name):
        yield f"line {users[-1].line}: USER {name}: name a number other than 0, which every host can check"


def startup(file: Dockerfile) -> Iterator[str]:
    """The image says whether it is well, and passes signals on."""
    health = file.final.each("HEALTHCHECK")
    check = health[-1].value.partition("CMD")[2] if health else ""
    if (exec_form(check) or [])[-len(HEALTH) :] != HEALTH:
        yield f"no HEALTHCHECK that runs '{' '.join(HEALTH)}', as a JSON list"
    entry = file.final.each("ENTRYPOINT")
    listed = exec_form(entry[-1].value) if entry else None
    if not listed or listed[0].rpartition("/")[2] != "tini":
        yield "ENTRYPOINT must be a JSON list that starts with tini, so that signals arrive and children are reaped"
    for one in file.final.each("CMD"):
        if exec_form(one.value) is None:
            yield f"line {one.line}: CMD must be a JSON list"


def downloads(file: Dockerfile) -> Iterator[str]:
    """Nothing is run as it comes from the network, and no check of it is turned off."""
    for stage in file.stages:
        yield from (f"line {one.line}: ADD can fetch and unpack: use COPY" for one in stage.each("ADD"))
        for one in stage.each("RUN"):
            if re.search(r"\b(curl|wget)\b[^;&]*\|\s*(sudo\s+)?(\S*/)?(ba|z|da)?sh\b|<\(\s*(curl|wget)", one.value):
                yield f"line {one.line}: runs what it downloads: pin a package or a commit instead"
            for command in commands(one):
                yield from _fetch_problems(one, command, stage)


def _fetch_problems(one: Instruction, command: list[str], stage: Stage) -> Iterator[str]:
    for option, program in UNCHECKED.items():
        if option in command and any(word.rpartition("/")[2].startswith(program) for word in command):
            yield f"line {one.line}: {option} of {program} turns a check off"
    if command[:1] == ["sudo"]:
        yield f"line {one.line}: sudo: the build is root already"
    if command[:1] == ["git"] and "clone" in command:
        yield f"line {one.line}: git clone takes whatever a branch or tag holds today: fetch a commit"
    if command[:1] == ["git"] and "fetch" in command:
        commit = expand(command[-1], stage.settings("ARG"))
        if not re.fullmatch(r"[0-9a-f]{40}", commit):
            yield f"line {one.line}: git fetch of '{commit}': name a commit by its 40 digits"


def labels(file: Dockerfile) -> Iterator[str]:
    """The image says what it is, and stays off the network unless it is told otherwise."""
    settings = file.final.settings("LABEL")
    yield from (f"LABEL {name} is missing" for name in LABELS if not settings.get(name))
    if file.final.settings("ENV").get("HF_HUB_OFFLINE") != "1":
        yield "ENV HF_HUB_OFFLINE=1 is missing: a run would reach for the network"


RULES: tuple[Callable[[Dockerfile], Iterator[str]], ...] = (
    bases,
    constraints,
    secrets,
    user,
    startup,
    downloads,
    labels,
)
