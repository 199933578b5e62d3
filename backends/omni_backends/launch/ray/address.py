"""Addresses of a Ray cluster, as people write them. Loads without Ray."""

from __future__ import annotations

from omni_portable.contracts.errors import ConfigError

FORMS = "write HOST:PORT (6379 unless the head was given another), ray://HOST:10001, or 'auto'"


def host_and_port(address: str) -> tuple[str, int] | None:
    """Of 'HOST:PORT' or 'ray://HOST:PORT'; None for anything else, 'auto' included. IPv6 hosts are in brackets."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if (
        not host
        or "/" in host
        or not (port.isascii() and port.isdigit() and len(port) <= 5 and 0 < int(port) < 1 << 16)
    ):
        return None
    return host.strip("[]"), int(port)


def check_address(address: str, key: str) -> None:
    """
    Args:
        address: may be empty.
        key: of the configuration that gives it.

    Raises:
        ConfigError: it is none.
    """
    if address and address != "auto" and host_and_port(address) is None:
        raise ConfigError(
            f"{key}={address} names no host and port",
            remedy=f"{FORMS}; leave it out to have a cluster started for this run",
        )
