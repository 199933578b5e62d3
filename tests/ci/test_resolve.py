"""Resolution of pins, with an index and a pip that are made up here; marker values with the real pip."""

from __future__ import annotations

import json
import subprocess
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from ci import pip_target
from ci.pin_sets import SETS, IndexGap, PinSet, read_pins, read_sets
from ci.resolve import main, offered, resolve, run_pip, target, uncovered, unused
from ci.stand_in import write_stand_in

ROOT = Path(__file__).resolve().parents[2]
PYPROJECT = """
[build-system]
requires = ["builder"]
[project]
dependencies = ["torch>=2.10"]
[project.optional-dependencies]
npu = ["torch-npu==2.10.0"]
"""
GAP = IndexGap("torch", "2.10.0+cpu", "absent", "the index has another build", "https://example.org")


@dataclass
class FakePip:
    """Answers `pip index versions` from tables, and `pip install --dry-run` with what it is told to.

    Args:
        wheels / sdists: package -> versions that the index has in that form.
        installs: package -> version that a resolution gives; None makes pip fail.
    """

    wheels: Mapping[str, Sequence[str]] = field(default_factory=dict)
    sdists: Mapping[str, Sequence[str]] = field(default_factory=dict)
    installs: Mapping[str, str] | None = field(default_factory=dict)
    calls: list[tuple[Mapping[str, str], list[str]]] = field(default_factory=list)
    seen: dict[str, list[str]] = field(default_factory=dict)

    def __call__(self, markers: Mapping[str, str], arguments: Sequence[str]) -> subprocess.CompletedProcess[str]:
        self.calls.append((markers, list(arguments)))
        return self._index(arguments) if arguments[0] == "index" else self._install(list(arguments))

    def _index(self, arguments: Sequence[str]) -> subprocess.CompletedProcess[str]:
        name = arguments[2]
        found = list(self.wheels.get(name, ()))
        if "--only-binary=:all:" not in arguments:
            found += self.sdists.get(name, ())
        if not found:
            return done(1, "", f"ERROR: No matching distribution found for {name}")
        return done(0, json.dumps({"name": name, "versions": found}))

    def _install(self, arguments: list[str]) -> subprocess.CompletedProcess[str]:
        def value(option: str) -> Path:
            return Path(arguments[arguments.index(option) + 1])

        self.seen["stand-ins"] = sorted(file.name for file in value("--find-links").glob("*.whl"))
        self.seen["requirements"] = value("--requirement").read_text().splitlines()
        if self.installs is None:
            conflict = (
                "\nThe conflict is caused by:\n    a 1 depends on b<2\n    The user requested (constraint) b==2\n\nTo"
            )
            return done(1, conflict, "WARNING: x\nERROR: ResolutionImpossible")
        entries = [{"metadata": {"name": name, "version": one}} for name, one in self.installs.items()]
        value("--report").write_text(json.dumps({"install": entries}))
        return done(0)


def done(code: int, out: str = "", error: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.CompletedProcess([], code, out, error)


def tree(root: Path, pins: str, sets: str = "") -> Path:
    (root / "dockerfiles" / "constraints").mkdir(parents=True)
    (root / "dockerfiles" / "constraints" / "npu.txt").write_text(pins)
    (root / SETS).write_text(sets)
    (root / "pyproject.toml").write_text(PYPROJECT)
    return root


def pin_set(*gaps: IndexGap, **changes: object) -> PinSet:
    values = {"name": "npu", "python": "3.12", "glibc": 28, "machines": ("aarch64",), "extras": ("npu",)}
    return PinSet(**{**values, "exceptions": gaps, **changes})  # type: ignore[arg-type]


def test_a_sound_set(tmp_path: Path) -> None:
    root = tree(tmp_path, "# made for NPUs\nbuilder==1\nTorch==2.10.0+cpu\ntorch_npu==2.10.0  # CPU build\n")
    pip = FakePip(installs={"builder": "1", "torch": "2.10.0+cpu", "torch-npu": "2.10.0"})
    outcome = resolve(root, pin_set(GAP, requirements=("vllm",)), "aarch64", pip)
    assert outcome.problems == []
    assert outcome.resolved == {"builder": "1", "torch": "2.10.0+cpu", "torch-npu": "2.10.0"}
    assert pip.seen["stand-ins"] == ["torch-2.10.0+cpu-py3-none-any.whl"]
    assert pip.seen["requirements"] == ["builder", "torch>=2.10", "vllm", "torch-npu==2.10.0"]
    markers, install = pip.calls[-1]
    assert markers["platform_machine"] == "aarch64"
    assert markers["python_version"] == "3.12"
    assert {"manylinux_2_28_aarch64", "manylinux2014_aarch64", "--only-binary=:all:", "--dry-run"} <= set(install)
    assert "manylinux_2_29_aarch64" not in install


def test_files_of_requirements(tmp_path: Path) -> None:
    root, pip = tree(tmp_path, "a==1\n"), FakePip()
    (root / "engine.txt").write_text("# an engine's list\nb>=2\n")
    resolve(root, pin_set(requirement_files=("engine.txt",)), "aarch64", pip)
    assert pip.seen["requirements"][-1] == "b>=2"


def test_package_without_a_pin(tmp_path: Path) -> None:
    root = tree(tmp_path, "a==1\n")
    outcome = resolve(root, pin_set(), "aarch64", FakePip(installs={"a": "1", "b_c": "2"}))
    assert outcome.problems == ["'b-c' has no pin: add b-c==2 to dockerfiles/constraints/npu.txt"]


def test_pin_that_the_index_does_not_have(tmp_path: Path) -> None:
    outcome = resolve(tree(tmp_path, "a==9\n"), pin_set(), "aarch64", FakePip(installs=None))
    (problem,) = outcome.problems
    assert "ResolutionImpossible" in problem
    assert "a 1 depends on b<2; The user requested (constraint) b==2" in problem
    assert "WARNING" not in problem
    assert outcome.resolved == {}


def test_pin_that_nothing_needs(tmp_path: Path) -> None:
    root = tree(tmp_path, "a==1\nb==1\nc==1\n")
    two = pin_set(machines=("aarch64", "x86_64"))
    given = {"aarch64": {"a": "1"}, "x86_64": {"b": "1"}}
    outcomes = [resolve(root, two, machine, FakePip(installs=found)) for machine, found in given.items()]
    assert list(unused(root, two, outcomes)) == ["nothing needs c==1: remove it from dockerfiles/constraints/npu.txt"]
    outcomes[1].resolved = {}  # where one machine did not resolve, nobody can tell
    assert list(unused(root, two, outcomes)) == []


@pytest.mark.parametrize(
    ("kind", "wheels", "sdists", "said"),
    [
        ("absent", [], [], ""),
        ("absent", ["2.10.0"], ["2.10.0"], ""),
        ("sdist", ["2.9.0"], ["2.10.0+cpu"], ""),
        ("absent", ["2.10.0+cpu"], [], "is not needed any more: the index has a wheel"),
        ("sdist", ["2.10.0+cpu"], [], "is not needed any more: the index has a wheel"),
        ("absent", [], ["2.10.0+cpu"], "the index has a source distribution: make it kind 'sdist'"),
        ("sdist", [], [], "the index has no such version at all"),
    ],
)
def test_exceptions_are_held_against_the_index(
    tmp_path: Path, kind: str, wheels: list[str], sdists: list[str], said: str
) -> None:
    gap = IndexGap("torch", "2.10.0+cpu", kind, "why", "where")  # type: ignore[arg-type]
    pip = FakePip({"torch": wheels}, {"torch": sdists}, {"torch": "2.10.0+cpu"})
    outcome = resolve(tree(tmp_path, "torch==2.10.0\n"), pin_set(gap), "aarch64", pip)
    assert [problem.endswith(said) or said in problem for problem in outcome.problems] == ([True] if said else [])


def test_exception_of_one_machine(tmp_path: Path) -> None:
    pip = FakePip(installs={})
    gap = IndexGap("torch", "2.10.0+cpu", "absent", "why", "where", machines=("x86_64",))
    outcome = resolve(tree(tmp_path, "torch==2.10.0\n"), pin_set(gap), "aarch64", pip)
    assert outcome.exceptions == []
    assert pip.seen["stand-ins"] == []


def test_exception_and_pin_must_agree() -> None:
    assert list(uncovered(pin_set(GAP), {"torch": "2.10.0"})) == []
    assert "pins 2.11.0" in next(uncovered(pin_set(GAP), {"torch": "2.11.0"}))
    assert "pins nothing" in next(uncovered(pin_set(GAP), {}))


def test_an_index_that_does_not_answer_is_no_empty_index() -> None:
    with pytest.raises(RuntimeError, match="connection refused"):
        offered(pin_set(), "aarch64", "torch", [], lambda *_: done(1, "", "ERROR: connection refused"))


@pytest.mark.parametrize("line", ["torch>=2", "torch", "torch==", "torch==1\nTorch==2"])
def test_what_is_no_pin(tmp_path: Path, line: str) -> None:
    (tmp_path / "npu.txt").write_text(line)
    with pytest.raises(ValueError, match=r"npu\.txt"):
        read_pins(tmp_path / "npu.txt")


SET = '[npu]\npython = "3.12"\nglibc = 28\nmachines = ["aarch64"]\nextras = ["npu"]\n'


@pytest.mark.parametrize(
    "text",
    [
        SET + "colour = 3",
        '[npu]\npython = "3.12"',
        SET + '[[npu.exceptions]]\npackage = "torch"\nversion = "2"\nkind = "absent"\nreason = " "\nsource = "x"',
        SET + '[[npu.exceptions]]\npackage = "torch"\nversion = "2"\nkind = "gone"\nreason = "y"\nsource = "x"',
        SET + '[[npu.exceptions]]\npackage = "torch"\nversion = "2"\nkind = "absent"\nreason = "y"',
    ],
)
def test_data_that_is_wrong(tmp_path: Path, text: str) -> None:
    with pytest.raises(ValueError, match=r"sets\.toml"):
        read_sets(tree(tmp_path, "", text))


def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = tree(tmp_path, "a==1\nb==1\n", SET)
    report = tmp_path / "report.json"
    assert main(["--report", str(report)], root, FakePip(installs={"a": "1"})) == 1
    assert "PROBLEM nothing needs b==1" in capsys.readouterr().out
    (entry,) = json.loads(report.read_text())
    assert (entry["name"], entry["machine"], entry["resolved"]) == ("npu", "aarch64", {"a": "1"})
    assert main(["npu"], root, FakePip(installs={"a": "1", "b": "1"})) == 0
    assert main(["nowhere"], root, FakePip()) == 2


def test_our_sets() -> None:
    """Every set has its file, and every exception the version that its file pins."""
    sets = read_sets(ROOT)
    assert list(sets) == ["cpu", "cuda", "rocm", "ascend"]
    for one in sets.values():
        assert list(uncovered(one, read_pins(ROOT / one.path))) == []
        assert all((ROOT / name).is_file() for name in one.requirement_files)


def test_one_version_on_every_device() -> None:
    """What decides numbers is equal everywhere, but for torch and the engines."""
    pins = {name: read_pins(ROOT / one.path) for name, one in read_sets(ROOT).items()}
    for package in ("numpy", "diffusers", "transformers", "accelerate", "peft", "safetensors", "tokenizers"):
        assert len({found[package] for found in pins.values()}) == 1, package


def test_stand_in(tmp_path: Path) -> None:
    path = write_stand_in(tmp_path, "torch-npu", "2.10.0+cpu", ["torch==2.10.0", 'a; python_version > "3"'])
    assert path.name == "torch_npu-2.10.0+cpu-py3-none-any.whl"
    with zipfile.ZipFile(path) as wheel:
        metadata = wheel.read("torch_npu-2.10.0+cpu.dist-info/METADATA").decode().splitlines()
        assert len(wheel.namelist()) == 3
    assert metadata[1:] == [
        "Name: torch-npu",
        "Version: 2.10.0+cpu",
        "Requires-Dist: torch==2.10.0",
        'Requires-Dist: a; python_version > "3"',
    ]


@pytest.mark.parametrize(("python", "machine", "expected"), [("3.12", "aarch64", "new"), ("3.10", "x86_64", "old")])
def test_conditions_are_the_target_machines(tmp_path: Path, python: str, machine: str, expected: str) -> None:
    """pip itself would decide them for the interpreter that runs it."""
    conditions = ['new==1; python_version >= "3.12"', 'old==1; python_version < "3.12"']
    write_stand_in(tmp_path, "top", "1", [*conditions, f'there==1; platform_machine == "{machine}"'])
    for name in ("new", "old", "there"):
        write_stand_in(tmp_path, name, "1", [])
    markers, options = target(pin_set(python=python), machine)
    report = tmp_path / "report.json"
    arguments = ["install", "--dry-run", "--ignore-installed", "--no-index", "--only-binary=:all:", *options]
    found = run_pip(markers, [*arguments, "--find-links", str(tmp_path), "--report", str(report), "top"])
    assert found.returncode == 0, found.stderr
    names = {entry["metadata"]["name"] for entry in json.loads(report.read_text())["install"]}
    assert names == {"top", expected, "there"}


def test_pip_that_cannot_be_told(monkeypatch: pytest.MonkeyPatch) -> None:
    from pip._vendor.packaging import markers

    monkeypatch.setattr(markers, "default_environment", markers.default_environment)  # put back afterwards
    monkeypatch.setattr(markers.Marker, "evaluate", lambda self: False)
    assert pip_target.main(['{"python_version": "3.12"}', "--version"]) == 3
