"""Which versions of an engine's package its adapter was written for. (Written with the vLLM engine.)"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version

from packaging.specifiers import SpecifierSet

from omni_portable.contracts.errors import PluginError


def require_version(engine: str, distributions: Sequence[str], supported: str, extra: str) -> str:
    """The installed version of the first of `distributions` that is there.

    Args:
        engine: name of the rollout engine, for messages.
        distributions: names on the package index that provide the same module.
        supported: range of versions, as pip writes it.
        extra: our own extra that installs it.

    Raises:
        PluginError: none is installed, or one of another version.
    """
    found = {name: held for name in distributions if (held := _installed(name)) is not None}
    if not found:
        raise PluginError(
            f"rollout.engine={engine} needs the package '{distributions[0]}' {supported}, which is not installed",
            remedy=f"make setup-engines, or pip install 'omni-portable[{extra}]'",
        )
    name, held = next(iter(found.items()))
    if not SpecifierSet(supported).contains(held, prereleases=True):
        raise PluginError(
            f"rollout.engine={engine} supports '{name}' {supported}, installed is {held}",
            remedy=f"make setup-engines, or pip install 'omni-portable[{extra}]'",
        )
    return held


def _installed(name: str) -> str | None:
    try:
        return version(name).partition("+")[0]
    except PackageNotFoundError:
        return None
