"""Network addresses that a server listens on or is called from."""

from __future__ import annotations

import ipaddress


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach `host`: an IP address (IPv4 may be mapped to IPv6) or a name."""
    try:
        return ipaddress.ip_address(host.removeprefix("::ffff:")).is_loopback
    except ValueError:
        return host.lower() == "localhost"
