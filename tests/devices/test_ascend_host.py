"""What an Ascend host has installed, from its files, in a folder that stands for '/'."""

from __future__ import annotations

from pathlib import Path

import pytest

from omni_devices.ascend import channels, detection, host, npu_smi, vllm_build
from omni_portable.contracts.errors import DeviceError
from tests.support.vendor import installed

CANN_VARIABLES = ("ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME")


@pytest.fixture(autouse=True)
def no_cann(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in CANN_VARIABLES:
        monkeypatch.delenv(name, raising=False)


def write(root: Path, name: str, text: str = "") -> Path:
    file = root / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return file


def test_device_nodes_are_numbered(tmp_path: Path) -> None:
    assert host.device_nodes(tmp_path) == []
    for name in ("davinci10", "davinci2", "davinci0", "davinci_manager", "davinci1x", "null"):
        write(tmp_path, f"dev/{name}")
    assert host.device_nodes(tmp_path) == [0, 2, 10]
    assert host.has_manager(tmp_path)
    assert not host.has_manager(tmp_path / "dev")


def test_cann_is_where_set_env_says_or_in_the_usual_places(tmp_path: Path) -> None:
    assert host.cann_home(tmp_path, {}) is None
    newer = tmp_path / "usr/local/Ascend/cann"
    newer.mkdir(parents=True)
    assert host.cann_home(tmp_path, {}) == newer
    older = tmp_path / "usr/local/Ascend/ascend-toolkit/latest"
    older.mkdir(parents=True)
    assert host.cann_home(tmp_path, {}) == older
    assert host.cann_home(tmp_path, {"ASCEND_HOME_PATH": str(newer)}) == newer
    assert host.cann_home(tmp_path, {"ASCEND_TOOLKIT_HOME": str(newer)}) == newer
    assert host.cann_home(tmp_path, {"ASCEND_HOME_PATH": "/nowhere"}) is None, "a wrong setting is not overruled"
    assert host.cann_is_sourced({"ASCEND_TOOLKIT_HOME": str(newer)})
    assert not host.cann_is_sourced({"ASCEND_HOME_PATH": ""})


@pytest.mark.parametrize("name", ["ascend_toolkit_install.info", "ascend_all_cann_install.info"])
def test_versions_of_cann(tmp_path: Path, name: str) -> None:
    assert host.cann_version(None) == ""
    assert host.cann_version(tmp_path) == ""
    write(tmp_path, f"aarch64-linux/{name}", "package_name=Ascend-cann-toolkit\nversion=9.1.0\ninnerversion=V100R001\n")
    assert host.cann_version(tmp_path) == "9.1.0"


def test_version_of_the_driver(tmp_path: Path) -> None:
    assert host.driver_version(tmp_path) == ""
    write(tmp_path, "usr/local/Ascend/driver/version.info", "Version=25.5.2\nascendhal_version=7.35.23\n")
    assert host.driver_version(tmp_path) == "25.5.2"
    write(tmp_path, "etc/ascend_install.info", "Driver_Install_Path_Param=/opt/Ascend\nDriver_Install_Type=full\n")
    assert host.driver_version(tmp_path) == ""
    write(tmp_path, "opt/Ascend/driver/version.info", "Version=25.3.rc1\n")
    assert host.driver_version(tmp_path) == "25.3.rc1"


def test_order_of_versions() -> None:
    ascending = ["8.2.RC1", "8.3.rc1", "8.3.RC2", "8.3.0", "8.3.1", "8.5.0", "9.1.0", "25.3.rc1", "25.3.rc1.6", "25.7"]
    for low, high in zip(ascending, ascending[1:], strict=False):
        assert host.at_least(high, low)
        assert host.at_least(low, high) == (low == "25.3.rc1")
    assert not host.at_least("", "8.3.rc1")
    assert not host.at_least("unknown", "8.3.rc1")
    assert not host.at_least("9.1.0", "")


@pytest.mark.parametrize(
    ("driver", "cann", "shares"),
    [
        ("25.3.rc1", "8.3.RC1", True),
        ("25.5.2", "9.1.0", True),
        ("25.2.1", "9.1.0", False),
        ("25.5.2", "8.2.RC1", False),
        ("", "9.1.0", False),
        ("25.5.2", "", False),
    ],
)
def test_memory_handles_need_a_driver_and_a_cann(driver: str, cann: str, shares: bool, tmp_path: Path) -> None:
    write(tmp_path, "usr/local/Ascend/driver/version.info", f"Version={driver}\n")
    write(tmp_path, "usr/local/Ascend/cann/x86_64-linux/ascend_toolkit_install.info", f"version={cann}\n")
    assert host.can_share_handles(driver, cann) is shares
    expected = ("ipc", "broadcast", "shared_memory") if shares else ("broadcast", "shared_memory")
    assert channels.weight_channels(tmp_path) == expected


def test_presence_is_the_drivers_nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(npu_smi, "installed", lambda: False)
    with installed({"torch-npu": None}):
        assert detection.present(tmp_path) == (
            False,
            "0 of /dev/davinci*, no /dev/davinci_manager, no npu-smi, torch-npu is not installed, no CANN toolkit, "
            "set_env.sh is not sourced",
        )
    write(tmp_path, "dev/davinci3")
    assert not detection.present(tmp_path)[0], "a node without its driver"
    write(tmp_path, "dev/davinci_manager")
    home = tmp_path / "cann"
    write(home, "x86_64-linux/ascend_toolkit_install.info", "version=9.1.0\n")
    monkeypatch.setenv("ASCEND_HOME_PATH", str(home))
    monkeypatch.setattr(npu_smi, "installed", lambda: True)
    with installed({"torch-npu": "2.10.0.post4"}):
        assert detection.present(tmp_path) == (
            True,
            f"1 of /dev/davinci*, /dev/davinci_manager, npu-smi, torch-npu 2.10.0.post4, CANN 9.1.0 in {home}, "
            "set_env.sh is sourced",
        )
    (home / "x86_64-linux/ascend_toolkit_install.info").unlink()
    assert "CANN of unknown version in" in detection.present(tmp_path)[1]


def test_a_build_of_vllm_ascend_is_read_and_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    assert vllm_build.installed() is None
    write(tmp_path, "vllm_ascend/__init__.py", "raise RuntimeError('this must not run')\n")
    assert vllm_build.installed() == vllm_build.Build("", has_extension=False)
    info = write(tmp_path, "vllm_ascend/_build_info.py", "# made\nimport os\nx: int = 1\n__device_type__ = 'A3'\n")
    write(tmp_path, "vllm_ascend/vllm_ascend_C.cpython-312-x86_64-linux-gnu.so")
    assert vllm_build.installed() == vllm_build.Build("A3", has_extension=True)
    info.write_text("__soc_version__ = 'ascend910b1'\n")
    assert vllm_build.installed() == vllm_build.Build("", has_extension=True)


@pytest.mark.parametrize(("kind", "generation"), [("A2", "a2"), ("A3", "a3"), ("A5", "a5"), ("", "a3")])
def test_a_build_for_this_generation_passes(kind: str, generation: str) -> None:
    vllm_build.check(vllm_build.Build(kind, True), generation)
    vllm_build.check(None, generation)


@pytest.mark.parametrize(
    ("kind", "generation", "soc_version"),
    [
        ("A2", "a3", "ascend910_9391"),
        ("A3", "a2", "ascend910b1"),
        ("A2", "a5", "ascend950dt_9582"),
        ("_310P", "a2", ""),
    ],
)
def test_a_build_for_another_generation_is_refused(kind: str, generation: str, soc_version: str) -> None:
    with pytest.raises(DeviceError, match=f"built for {kind.strip('_')}, but this device is '{generation}'") as caught:
        vllm_build.check(vllm_build.Build(kind, True), generation)
    assert f"SOC_VERSION={soc_version}" in str(caught.value)
    assert "git+https://github.com/vllm-project/vllm-ascend@" in str(caught.value)
