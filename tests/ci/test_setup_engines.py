"""What `make setup-engines` does to packages, without a network: wheels without libraries, and operators declared only
where they are missing."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import zipfile
from pathlib import Path
from types import ModuleType

import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]


def load(path: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(Path(path).stem, ROOT / path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def companions() -> ModuleType:
    return load("tools/cpu_torch_companions/omni_cpu_companions.py")


def make_wheel(folder: Path) -> Path:
    wheel = folder / "sounds-1.0-cp311-cp311-linux_x86_64.whl"
    with zipfile.ZipFile(wheel, "w") as file:
        file.writestr(
            "sounds/__init__.py", "import pathlib\nHERE = [p.name for p in pathlib.Path(__file__).parent.iterdir()]\n"
        )
        file.writestr("sounds/lib/_sounds.so", b"\x7fELF")
        file.writestr("sounds-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: sounds\nVersion: 1.0\n")
        file.writestr("sounds-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        file.writestr("sounds-1.0.dist-info/RECORD", "sounds/lib/_sounds.so,,\n")
    return wheel


def test_a_wheel_is_made_again_without_its_libraries(tmp_path: Path) -> None:
    made = load("ci/setup_engines.py").without_libraries(make_wheel(tmp_path))
    assert made.name == "sounds-1.0-0omniportable-cp311-cp311-linux_x86_64.whl"
    with zipfile.ZipFile(made) as file:
        names = file.namelist()
        record = file.read("sounds-1.0.dist-info/RECORD").decode()
    assert not [name for name in names if name.endswith(".so")]
    assert sorted(line.partition(",")[0] for line in record.splitlines()) == sorted(names)
    assert ".so" not in record


def test_an_import_error_is_told_in_one_line() -> None:
    script = load("ci/setup_engines.py")
    assert script.import_error("json") == ""
    assert script.import_error("no_such_module") == "ModuleNotFoundError: No module named 'no_such_module'"


def test_nothing_is_declared_where_no_help_is_needed(
    companions: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not companions.declare_where_missing(tmp_path / "none.so")
    broken = tmp_path / "_C.so"
    broken.write_bytes(b"no library")
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    assert not companions.declare_where_missing(broken)


SCENE = """
import sys
sys.path[:0] = [{tools!r}, {site!r}]
import omni_cpu_companions
omni_cpu_companions.install()
omni_cpu_companions.install()
assert len([f for f in sys.meta_path if type(f).__name__ == "_BeforeTorchvision"]) == 1
assert "torch" not in sys.modules
import torchvision
assert not [f for f in sys.meta_path if type(f).__name__ == "_BeforeTorchvision"]
print(torchvision.SEEN)
"""


def test_operators_are_declared_when_torchvision_is_imported_and_not_before(tmp_path: Path) -> None:
    """Beside a torchvision whose library cannot be loaded, in a process of its own."""
    package = tmp_path / "torchvision"
    package.mkdir()
    (package / "_C.so").write_bytes(b"no library")
    (package / "__init__.py").write_text(
        "import torch\nSEEN = [hasattr(torch.ops.torchvision, name) for name in ('nms', 'qnms')]\n"
    )
    if torch.version.cuda is not None or torch.version.hip is not None:
        pytest.skip("torch was built for an accelerator")
    scene = SCENE.format(tools=str(ROOT / "tools/cpu_torch_companions"), site=str(tmp_path))
    done = subprocess.run([sys.executable, "-S", "-c", _with_site(scene)], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "[True, True]", done.stderr


def _with_site(scene: str) -> str:
    """The interpreter's packages without its .pth files: an installed copy must not help."""
    return f"import sys; sys.path += {[path for path in sys.path if 'site-packages' in path]!r}\n{scene}"
