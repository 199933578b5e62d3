"""The images' policy: our Dockerfiles keep it, and every breach that it names is found."""

from __future__ import annotations

import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from ci import check_dockerfiles
from ci.check_dockerfiles import ASCEND, hadolint, main, problems, table
from ci.dockerfile import assignments, commands, exec_form, parse
from ci.dockerfile_rules import RULES
from omni_devices.ascend import SPEC
from omni_portable.contracts.device import DeviceCapabilities, PackageNeed, StaticProfile

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    shutil.copytree(ROOT / "dockerfiles", tmp_path / "dockerfiles")
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def change(root: Path, device: str, old: str, new: str, file: str = "") -> list[str]:
    """Problems after a replacement in a device's Dockerfile, or in another file of the folder."""
    path = root / "dockerfiles" / (file or f"Dockerfile.{device}")
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    return list(problems(root))


def test_ours_keep_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0, capsys.readouterr().out


HEALTH = 'CMD ["omni-portable", "doctor", "--quick"]'
CONSTRAINT = "--constraint /opt/omni/constraints.txt"
BREACHES = [
    ("cpu", "python:3.11.14-slim-bookworm${DIGEST} AS", "python:latest AS", "not pinned"),
    ("cpu", "python:3.11.14-slim-bookworm${DIGEST} AS", "python AS", "not pinned"),
    ("cpu", "python:3.11.14-slim-bookworm${DIGEST} AS", "python@sha256:123 AS", "not pinned"),
    ("cuda", 'ARG DIGEST=""', "ARG DIGEST", "give the argument a default"),
    ("cuda", f"pip install {CONSTRAINT} '/opt", "pip install '/opt", "has no --constraint"),
    ("rocm", f"pip install {CONSTRAINT} --no-deps", "pip -q install --no-deps", "has no --constraint"),
    ("cuda", f"pip install {CONSTRAINT} '/opt", "pip install -c other.txt '/opt", "'other.txt' is not copied"),
    ("cuda", "COPY dockerfiles/constraints/cuda.txt /opt/omni/constraints.txt", "", "is not copied from"),
    ("cuda", "constraints/cuda.txt", "constraints/cpu.txt", "does not use dockerfiles/constraints/cuda.txt"),
    ("cuda", "RUN pip install", "RUN uv pip install", "past pip"),
    ("cuda", "vllm==0.30.0", "vllm==0.31.0", "vllm==0.31.0, but the constraints pin 0.30.0"),
    ("cuda", " xformers", " lpips==1.0", "pin nothing of that name"),
    ("cuda", "ENV PIP_DISABLE", "ARG HF_TOKEN\nENV PIP_DISABLE", "ARG HF_TOKEN looks like a secret"),
    ("cuda", "HF_HUB_OFFLINE=1", "WANDB_API_KEY=x HF_HUB_OFFLINE=1", "ENV WANDB_API_KEY looks like a secret"),
    ("cuda", 'ARG DIGEST=""', 'ARG DIGEST=""\nARG DB_PASSWORD', "ARG DB_PASSWORD looks like a secret"),
    ("cuda", "COPY . /opt/omni/source", "COPY .netrc /root/", "holds secrets"),
    ("cuda", "COPY . /opt/omni/source", "COPY keys/id_rsa /root/", "holds secrets"),
    ("cuda", "COPY . /opt/omni/source", "RUN git -C x fetch https://me:pw@h.org/r " + "a" * 40, "with a password"),
    ("cuda", "USER 10001", "USER root", "USER root"),
    ("cuda", "USER 10001", "USER 0:0", "USER 0"),
    ("cuda", "USER 10001\n", "", "runs as root"),
    ("cuda", '"doctor", "--quick"]\nENTRY', '"doctor"]\nENTRY', "no HEALTHCHECK"),
    ("cuda", 'CMD ["omni-portable", "doctor", "--quick"]\nENTRY', "CMD omni-portable doctor\nENTRY", "no HEALTHCHECK"),
    ("cuda", '"tini", "--", ', "", "starts with tini"),
    ("cuda", 'CMD ["doctor"]', "CMD doctor", "CMD must be a JSON list"),
    ("cuda", "COPY . /opt", "ADD https://x.org/a.tar /opt", "use COPY"),
    ("cuda", "COPY . /opt/omni/source", "RUN curl -sS https://x.org/i | sh", "runs what it downloads"),
    ("cuda", "COPY . /opt/omni/source", "RUN wget -qO- https://x.org/i | /bin/bash -s", "runs what it downloads"),
    ("cuda", "COPY . /opt/omni/source", "RUN curl -k https://x.org/i", "-k of curl turns a check off"),
    ("cuda", "pip install --constraint", "pip install --trusted-host x --constraint", "turns a check off"),
    ("cuda", "COPY . /opt/omni/source", "RUN git clone https://x.org/r", "git clone takes whatever"),
    ("cuda", "COPY . /opt/omni/source", "RUN git fetch https://x.org/r main", "name a commit"),
    ("cuda", "COPY . /opt/omni/source", "RUN sudo true", "root already"),
    ("cuda", 'image.licenses="Apache-2.0"', 'image.vendor="x"', "LABEL org.opencontainers.image.licenses is missing"),
    ("cuda", "HF_HUB_OFFLINE=1", "HF_HUB_OFFLINE=0", "would reach for the network"),
    ("cuda", "COPY . /opt/omni/source", "RUN <<EOF\npip install x\nEOF", "here-documents cannot be checked"),
    ("cuda", "USER 10001", "USR 10001", "'USR' is no instruction"),
]


@pytest.mark.parametrize(("device", "old", "new", "said"), BREACHES)
def test_every_breach_is_found(tree: Path, device: str, old: str, new: str, said: str) -> None:
    found = change(tree, device, old, new)
    assert found
    assert all(one.startswith(f"Dockerfile.{device}: ") for one in found)
    assert [one for one in found if said in one], found


OFFLINE = "    HF_HUB_OFFLINE=1"
AUTOLOAD = "TORCH_DEVICE_BACKEND_AUTOLOAD=0"
COMMIT = "COMMIT=182b75ea84ff13ece27b57391331ef8935410aea"
ASCEND_BREACHES = [
    ("AS base-a3", "AS base-x3", "generation 'a3' has no stage base-a3"),
    ("AS base-a3", "AS base-x3", "the device has no generation 'x3'"),
    ("9.1.0-950-", "9.1.0-910b-", "the base of 'a5' is quay.io/ascend/cann:9.1.0-910b-"),
    ("ascend950dt_9582", "ascend910b1", "base-a5: SOC_VERSION must be ascend950dt_9582"),
    ("BATCH_INVARIANT=0", "BATCH_INVARIANT=1", "base-a5: BATCH_INVARIANT must be 0"),
    ("FROM base-${SOC}", "FROM base-a2", "must be FROM base-${SOC}"),
    ("ARG SOC\n", "ARG SOC=a9\n", "ARG SOC must stand before the first FROM"),
    ("ARG SOC\n", "", "ARG SOC must stand before the first FROM"),
    (
        "TORCH_DEVICE_BACKEND_AUTOLOAD=0 VLLM_TARGET",
        "VLLM_TARGET",
        "imports torch needs TORCH_DEVICE_BACKEND_AUTOLOAD=0",
    ),
    (
        "    HF_HUB_OFFLINE=1",
        "    TORCH_DEVICE_BACKEND_AUTOLOAD=0 HF_HUB_OFFLINE=1",
        "would not load torch-npu at run time",
    ),
    ("    HF_HUB_OFFLINE=1", "    VLLM_BATCH_INVARIANT=1 HF_HUB_OFFLINE=1", "batch-invariant mode"),
    ('VLLM_BATCH_INVARIANT="${BATCH_INVARIANT}"', "VLLM_BATCH_INVARIANT=1", "no step compiles with"),
    ('"tini", "--", "ascend-env"', '"tini", "--"', "ENTRYPOINT must run through ascend-env"),
    ('CMD ["ascend-env", "omni', 'CMD ["omni', "HEALTHCHECK must run through ascend-env"),
    (
        "COMMIT=182b75ea84ff13ece27b57391331ef8935410aea",
        "COMMIT=" + "b" * 40,
        "VLLM_ASCEND_COMMIT must be those of the pin",
    ),
    ("COMMIT=182b75ea84ff13ece27b57391331ef8935410aea", "COMMIT=main", "name a commit by its 40 digits"),
]


@pytest.mark.parametrize(("old", "new", "said"), ASCEND_BREACHES)
def test_every_breach_of_ascend_is_found(tree: Path, old: str, new: str, said: str) -> None:
    found = change(tree, "ascend", old, new)
    assert [one for one in found if said in one], found


def test_default_of_soc_may_be_a_generation(tree: Path) -> None:
    assert change(tree, "ascend", "ARG SOC\n", "ARG SOC=a3\n") == []


def test_both_scripts_of_cann_are_sourced(tree: Path) -> None:
    found = change(tree, "ascend", "source /usr/local/Ascend/nnal/atb/set_env.sh\n", "", file="ascend-env.sh")
    assert found == [
        "Dockerfile.ascend: dockerfiles/ascend-env.sh does not source /usr/local/Ascend/nnal/atb/set_env.sh"
    ]


def test_generations_are_the_devices() -> None:
    assert tuple(ASCEND) == SPEC.capabilities["generations"]


def test_every_device_has_an_image(tree: Path) -> None:
    (tree / "dockerfiles" / "Dockerfile.rocm").rename(tree / "dockerfiles" / "Dockerfile.xpu")
    assert list(problems(tree)) == [
        "device 'rocm' has no dockerfiles/Dockerfile.rocm",
        "Dockerfile.xpu: no device of that name",
    ]
    assert main([str(tree / "dockerfiles")]) == 2


def test_a_pin_that_a_device_does_not_want(tree: Path) -> None:
    found = change(tree, "cuda", "peft==0.21.2", "peft==0.20.0", file="constraints/cuda.txt")
    assert "Dockerfile.cuda: the table of 'cuda:sm90' needs peft>=0.21,<0.22, but the constraints pin 0.20.0" in found


def profile(
    *needs: PackageNeed, constraints: str = "dockerfiles/constraints/cpu.txt", image: str = ""
) -> StaticProfile:
    return StaticProfile(
        name="cpu",
        generation="",
        capabilities=DeviceCapabilities(("float32",), "float32", "", ()),
        attention_families=(),
        default_attention={},
        memory_bytes=None,
        collective_backend="gloo",
        packages=needs,
        constraints=constraints or "dockerfiles/constraints/cpu.txt",
        image=image or "dockerfiles/Dockerfile.cpu --build-arg X=1",
    )


def test_tables_are_held_against_pins() -> None:
    need, option = PackageNeed("A_b", ">=2", "", ""), PackageNeed("c", "==1", "", "", optional=True)
    assert list(table(profile(need, option), {"a-b": "2.0+cpu"}, "cpu")) == []
    assert "do not pin" in next(table(profile(need), {}, "cpu"))
    assert "pin 1.0" in next(table(profile(need), {"a-b": "1.0"}, "cpu"))
    assert "pin 2" in next(table(profile(option), {"c": "2"}, "cpu"))
    assert "names the constraints 'x'" in next(table(profile(constraints="x"), {}, "cpu"))
    assert "names the image 'y'" in next(table(profile(image="y"), {}, "cpu"))


DOCKERFILE = """# syntax
ARG BASE=debian:12
FROM --platform=linux/amd64 ${BASE} AS one
RUN --mount=type=cache,target=/x a "b c" && \\
    # in between
    d=1 e | f; (g)
ENV A=1 B="two words"
FROM one
CMD ["x", "y"]
"""


def test_reading() -> None:
    file = parse(DOCKERFILE)
    assert file.args == {"BASE": "debian:12"}
    assert [(stage.name, stage.image, stage.line) for stage in file.stages] == [("one", "${BASE}", 3), ("", "one", 8)]
    one = file.stage("one")
    assert one is not None
    assert one.settings("ENV") == {"A": "1", "B": "two words"}
    assert commands(one.each("RUN")[0]) == [["a", "b c"], ["d=1", "e"], ["f"], ["g"]]
    assert exec_form(file.final.each("CMD")[0].value) == ["x", "y"]
    assert exec_form("[x") is None
    assert dict(assignments("A B=1")) == {"A": "", "B": "1"}
    with pytest.raises(ValueError, match="no FROM"):
        parse("ARG A\n")


def test_a_stage_may_be_the_base_of_another() -> None:
    bases = RULES[0]
    assert list(bases(parse("FROM a:1 AS one\nFROM one\n"))) == []
    assert len(list(bases(parse("FROM a:1 AS one\nFROM two\n")))) == 1
    assert list(bases(parse("ARG R=r.io:5000\nFROM ${R}/a:1\n"))) == []
    assert len(list(bases(parse("FROM r.io:5000/a\n")))) == 1
    assert list(bases(parse(f"FROM a@sha256:{'0' * 64}\n"))) == []


def test_hadolint_is_not_run_where_it_is_not(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", str(tree / "python"))
    monkeypatch.setattr(check_dockerfiles.shutil, "which", lambda name: None)
    said, content = hadolint(tree)
    assert "not run" in said
    assert content


@pytest.mark.parametrize(("status", "content"), [(0, True), (1, False)])
def test_hadolint_decides(tree: Path, monkeypatch: pytest.MonkeyPatch, status: int, content: bool) -> None:
    program = tree / "hadolint"
    program.write_text(f'#!/bin/sh\necho "$@"\nexit {status}\n')
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setattr(sys, "executable", str(tree / "python"))
    said, found = hadolint(tree)
    assert found is content
    assert all(f"Dockerfile.{device}" in said for device in ("cpu", "cuda", "rocm", "ascend"))
    assert "hadolint.yaml" in said


def test_check_image(tmp_path: Path) -> None:
    """The program that images run at the end of their build, on this installation."""
    script = ROOT / "dockerfiles" / "check_image.py"

    def run(pins: str, *unwanted: str) -> tuple[int, str]:
        (tmp_path / "pins.txt").write_text(pins)
        command = [sys.executable, str(script), str(tmp_path / "pins.txt"), *unwanted]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout

    assert run("# pins\nabsent-package==1\nhydra-core==1.3.2  # right\n", "absent-package")[0] == 0
    assert run("hydra-core==1.3.1\n") == (1, "hydra-core: 1.3.2 is installed, but 1.3.1 is pinned\n")
    assert run("hydra-core==1.3.2\n", "hydra-core")[1] == "hydra-core: 1.3.2 is installed, but it must be removed\n"
    assert subprocess.run([sys.executable, str(script)], capture_output=True, check=False).returncode == 2


def test_nothing_but_the_package_reaches_a_build() -> None:
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    rules = [line for line in lines if line and not line.startswith("#")]
    assert rules[0] == "*"
    allowed = [line[1:] for line in rules if line.startswith("!")]
    assert all((ROOT / path).exists() for path in allowed)
    assert not {".git", ".venv", "tests", "runs", ".ci"} & {path.partition("/")[0] for path in allowed}
