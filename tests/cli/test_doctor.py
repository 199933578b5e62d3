"""The doctor: finds what is wrong before importing it, and says what to change."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from omni_devices.common.packages import UNREADABLE, installed_version
from omni_portable.cli import main
from omni_portable.cli.diagnosis import machine, packages, parts
from omni_portable.contracts import registry
from omni_portable.contracts.errors import DeviceError, PluginError
from omni_portable.contracts.registry import PluginSpec

INSTALLED = {"torch": "2.9.0+cpu", "numpy": "2.1.0", "torchvision": "0.24.0+xyz", "vllm": "0.29.0"}


@pytest.fixture
def versions(monkeypatch):
    monkeypatch.setattr(packages, "installed", lambda name: INSTALLED.get(name))


def test_missing_and_wrong_versions(versions):
    wanted = [Requirement(text) for text in ("torch>=2.10", "numpy>=2.0", "pillow>=11")]
    found = {check.name: check for check in packages.base_problems(wanted)}
    assert set(found) == {"torch", "pillow"}
    assert "2.9.0+cpu" in found["torch"].found
    assert found["torch"].remedy == "pip install 'torch>=2.10'"
    assert "not installed" in found["pillow"].found


def test_pins_of_extras_warn_unless_one_of_them_fits(versions):
    texts = [
        "vllm==0.30.0; extra == 'a'",
        "vllm==0.31.0; extra == 'b'",
        "numpy==2.1.0; extra == 'a'",
        "ray; extra == 'a'",
    ]
    (check,) = packages.extra_problems([Requirement(text) for text in texts])
    assert (check.name, check.status) == ("vllm", "warn")
    assert "==0.30.0 or ==0.31.0" in check.found


def test_companions_of_another_build(versions):
    (check,) = packages.companion_problems()
    assert (check.name, check.status) == ("torchvision", "warn")
    assert check.remedy == "pip uninstall torchvision, or in the source tree: make setup-engines"


def test_nothing_is_imported_beside_a_wrong_package(monkeypatch, capsys):
    monkeypatch.setattr(packages, "installed", lambda name: None if name == "torch" else "999")
    monkeypatch.setattr(parts, "plugin_checks", lambda load: pytest.fail("plugins were loaded"))
    assert main(["doctor"]) == 1
    shown = capsys.readouterr().out
    assert "FAIL  torch: not installed" in shown
    assert "left out" in shown
    assert "to change" in shown


class Absent:
    @staticmethod
    def available():
        return False, "no driver"


class Broken:
    @staticmethod
    def available():
        raise DeviceError("the driver is too old", remedy="update it")


class Exploding:
    @staticmethod
    def available():
        raise OSError("libthing.so: undefined symbol")


def fake_devices(monkeypatch, **classes):
    class Point:
        def __init__(self, name):
            self.value = "x:y"
            self.spec = PluginSpec(name, "", f"{__name__}:{classes[name].__name__}")

        def load(self):
            return self.spec

    points = {name: Point(name) for name in classes}
    monkeypatch.setattr(registry, "_entry_points", lambda kind: points if kind == "device" else {})


def test_devices(monkeypatch):
    fake_devices(monkeypatch, absent=Absent, broken=Broken, exploding=Exploding)
    found = {check.name: check for check in parts.device_checks(ask=False)}
    assert found["device 'absent'"].status == "ok"
    assert "no driver" in found["device 'absent'"].found
    assert found["device 'broken'"].remedy == "update it"
    assert "undefined symbol" in found["device 'exploding'"].found
    assert found["devices"].status == "fail"


def test_plugins_that_cannot_be_imported(monkeypatch):
    fake_devices(monkeypatch, absent=Absent)
    assert [check.status for check in parts.plugin_checks(load=True)] == ["ok"]
    registry.spec("device", "absent")
    monkeypatch.setattr(registry, "spec", lambda kind, name: PluginSpec(name, "", "no_such_module:x"))
    checks = list(parts.plugin_checks(load=True))
    assert [check.status for check in checks] == ["fail"]
    assert "no_such_module" in checks[0].found
    assert [check.status for check in parts.plugin_checks(load=False)] == ["ok"]


def test_memory_and_disk(tmp_path, monkeypatch):
    assert machine.memory_check(8 * machine.GIB, 16 * machine.GIB).status == "ok"
    assert machine.memory_check(machine.GIB, 16 * machine.GIB).status == "warn"
    (check,) = machine.folder_checks("runs", tmp_path / "not" / "yet", "move")
    assert check.status == "ok"
    assert str(tmp_path) in check.found
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setattr(machine, "NEEDED_DISK", 1 << 60)
    (check,) = machine.folder_checks("runs", tmp_path, "move")
    assert (check.status, check.remedy) == ("warn", "free some space, or move")


def test_a_folder_that_cannot_be_written():
    (check,) = machine.folder_checks("runs", Path("/proc/omni"), "move")
    assert (check.status, check.remedy) == ("fail", "move")


def test_json(capsys, monkeypatch):
    monkeypatch.setattr(parts, "recipe_checks", lambda: iter(()))
    code = main(["doctor", "--quick", "--json"])
    found = json.loads(capsys.readouterr().out)
    assert found["ok"] == (code == 0)
    assert {"python", "packages", "memory"} <= {check["name"] for check in found["checks"]}


def test_quick_imports_no_torch():
    code = (
        "import sys; from omni_portable.cli import main; main(['doctor', '--quick']); sys.exit('torch' in sys.modules)"
    )
    assert os.spawnv(os.P_WAIT, sys.executable, ["python", "-c", code]) == 0


@pytest.fixture
def site(tmp_path, monkeypatch):
    """A folder of packages that is searched first."""
    monkeypatch.syspath_prepend(tmp_path)
    registry._entry_points.cache_clear()
    yield tmp_path
    registry._entry_points.cache_clear()


@pytest.mark.parametrize(
    "source",
    ["def (:", "raise ValueError('x')", "raise SystemExit(0)", "SPEC = 5", "import no_such_module", None],
    ids=["syntax", "raises", "exits", "no spec", "missing import", "bad entry point"],
)
def test_a_plugin_that_breaks_when_it_is_read_is_one_finding(site, capsys, source):
    distribution(site, "evil", "1.0")
    target = "evil_plugin:SPEC" if source else ":::"
    (site / "evil-1.0.dist-info" / "entry_points.txt").write_text(f"[omni_portable.devices]\nevil = {target}\n")
    (site / "evil_plugin.py").write_text(source or "")
    assert main(["doctor", "--quick", "--json"]) == 1
    sys.modules.pop("evil_plugin", None)
    checks = json.loads(capsys.readouterr().out)["checks"]
    assert [check["status"] for check in checks if check["name"] == "device 'evil'"] == ["fail"]
    assert {"stack", "device 'cpu'"} <= {check["name"] for check in checks}


def test_two_packages_that_register_one_name(monkeypatch, capsys):
    def entry_points(kind):
        raise PluginError(f"two packages register the {kind} 'cpu'", remedy="uninstall one of them")

    monkeypatch.setattr(registry, "_entry_points", entry_points)
    assert main(["doctor", "--quick"]) == 1
    shown = capsys.readouterr().out
    assert "FAIL  device plugins: two packages register the device 'cpu'\n       to fix it: uninstall one" in shown
    assert "no device is usable" in shown


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"\xff\xfe\x00", "UnicodeDecodeError"),
        (b"Name: omni-portable\nVersion: 1\nRequires-Dist: torch (((\n", "InvalidRequirement"),
        (b"Name: omni-portable\nVersion: 1\nRequires-Python: >=banana\n", "InvalidSpecifier"),
    ],
)
def test_damaged_metadata_of_our_own_is_a_finding(site, capsys, text, said):
    distribution(site, "omni-portable", "1", text)
    assert main(["doctor", "--quick", "--json"]) == 1
    checks = {check["name"]: check for check in json.loads(capsys.readouterr().out)["checks"]}
    assert checks["packages"]["found"].startswith(f"the metadata of omni-portable is damaged: {said}")


def test_damaged_metadata_of_a_requirement_is_a_finding(site, capsys):
    distribution(site, "peft", "1", b"\xff\xfe\x00")
    assert main(["doctor", "--quick"]) == 1
    assert "FAIL  peft: version of unreadable metadata, but peft" in capsys.readouterr().out
    assert installed_version("peft") == UNREADABLE
    assert packages.UNREADABLE == UNREADABLE


def distribution(folder, name, version, text=None):
    """Metadata of an installed distribution, as pip writes them."""
    made = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    made.mkdir()
    (made / "METADATA").write_bytes(text or f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n".encode())


def test_no_folder_for_temporary_files(monkeypatch, tmp_path):
    def nowhere() -> str:
        raise FileNotFoundError(2, "no usable folder")

    monkeypatch.setattr(machine.tempfile, "gettempdir", nowhere)
    (check,) = machine.temporary_checks("set TMPDIR")
    assert (check.status, check.remedy) == ("fail", "set TMPDIR")
