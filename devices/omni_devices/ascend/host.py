"""What an Ascend host has installed, read from files and package metadata: no vendor module, no device context."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

ROOT = Path("/")
_HOMES = ("usr/local/Ascend/ascend-toolkit/latest", "usr/local/Ascend/cann")
_HOME_VARIABLES = ("ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME")
_INSTALL_INFOS = ("ascend_toolkit_install.info", "ascend_all_cann_install.info", "ascend_ops_install.info")
"""CANN 9 installs all parts together and renamed the first of these."""

SET_ENV = "source /usr/local/Ascend/ascend-toolkit/set_env.sh && source /usr/local/Ascend/nnal/atb/set_env.sh"
IPC_DRIVER = "25.3.rc1"
IPC_CANN = "8.3.rc1"
"""First driver and first CANN whose memory handles another process may open."""


def device_nodes(root: Path = ROOT) -> list[int]:
    """Numbers of the NPUs whose device nodes are here (/dev/davinciN), ascending."""
    names = (node.name.removeprefix("davinci") for node in (root / "dev").glob("davinci[0-9]*"))
    return sorted(int(name) for name in names if name.isdigit())


def has_manager(root: Path = ROOT) -> bool:
    """Whether the driver's control node is here."""
    return (root / "dev" / "davinci_manager").exists()


def cann_home(root: Path = ROOT, environ: Mapping[str, str] = os.environ) -> Path | None:
    """The CANN toolkit: where set_env.sh says, else the usual places; None where there is none."""
    named = [Path(environ[name]) for name in _HOME_VARIABLES if environ.get(name)]
    return next((path for path in named or [root / home for home in _HOMES] if path.is_dir()), None)


def cann_is_sourced(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether set_env.sh was sourced in this environment."""
    return any(environ.get(name) for name in _HOME_VARIABLES)


def cann_version(home: Path | None) -> str:
    """CANN's version ('9.1.0', '8.3.RC1'), or '' where its files do not tell."""
    if home is None:
        return ""
    return _first_value((file for name in _INSTALL_INFOS for file in sorted(home.glob(f"*-linux/{name}"))), "version")


def driver_version(root: Path = ROOT) -> str:
    """The driver's version ('25.5.2', '25.3.rc1'), or '' where its file is not here.

    A container has the file only where it was mounted: -v /usr/local/Ascend/driver/version.info.
    """
    installed = _first_value([root / "etc" / "ascend_install.info"], "Driver_Install_Path_Param")
    base = root / installed.lstrip("/") if installed else root / "usr/local/Ascend"
    return _first_value([base / "driver" / "version.info"], "Version")


def can_share_handles(driver: str, cann: str) -> bool:
    """Whether tensors may be handed to another process as memory handles; False where a version is unknown."""
    return at_least(driver, IPC_DRIVER) and at_least(cann, IPC_CANN)


def at_least(found: str, needed: str) -> bool:
    """Order of Huawei's versions: '8.3.RC1' < '8.3.0' < '8.3.1' < '8.5.0'; an unreadable one is never enough."""
    have, want = _ordered(found), _ordered(needed)
    return have is not None and want is not None and have >= want


def _ordered(version: str) -> tuple[int, int, int, int] | None:
    match = re.match(r"(\d+)\.(\d+)(?:\.(?:rc(\d+)|(\d+)))?", version.strip(), re.IGNORECASE)
    if match is None:
        return None
    major, minor, candidate, patch = match.groups()
    return int(major), int(minor), int(candidate is None), int(candidate or patch or 0)


def _first_value(files: Iterable[Path], key: str) -> str:
    """The value of the first 'key=value' line of the files that exist."""
    for file in files:
        if file.is_file():
            for line in file.read_text(encoding="utf-8", errors="replace").splitlines():
                name, _, value = line.partition("=")
                if name.strip() == key:
                    return value.strip()
    return ""
