"""The network addresses that a URL's host name stands for. Only public ones are accepted, unless allowed otherwise.

A webhook's URL is often somebody else's input: it must not make Tailrace a door into the network that it runs in. The
check applies to the resolved addresses, whatever form the URL gives them (`localhost`, `2130706433`, a name of the
attacker's own). The caller connects to an address that was checked, never to the name, which may resolve differently a
moment later.
"""

from __future__ import annotations

import socket
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import Any, Final

from tailrace.errors import SinkError, SinkRefused

# The lists are our own rather than `is_global` of the standard library, whose answers differ between Python's releases.
_SPECIAL_IPV4: Final = tuple(
    IPv4Network(network)
    for network in (
        "0.0.0.0/8",  # this network: connects to the machine itself
        "10.0.0.0/8",
        "100.64.0.0/10",  # carrier-grade NAT; some clouds' metadata
        "127.0.0.0/8",
        "168.63.129.16/32",  # Azure's services for its machines, under an address that looks public
        "169.254.0.0/16",  # link-local: most clouds' metadata
        "172.16.0.0/12",
        "192.0.0.0/24",
        "192.0.2.0/24",
        "192.88.99.0/24",
        "192.168.0.0/16",
        "198.18.0.0/15",
        "198.51.100.0/24",
        "203.0.113.0/24",
        "224.0.0.0/3",  # multicast, reserved, broadcast
    )
)
_PUBLIC_IPV6: Final = IPv6Network("2000::/3")
_SPECIAL_IPV6: Final = tuple(
    IPv6Network(network)
    for network in (
        "2001::/23",  # protocol assignments, Teredo among them
        "2001:db8::/32",
        "3fff::/20",
    )
)
_IPV4_IN_LAST_BITS: Final = (IPv6Network("::/96"), IPv6Network("64:ff9b::/96"))
"""IPv4-compatible addresses, and those of a NAT64 gateway, which connects to the IPv4 address."""
_IPV4_BITS: Final = 0xFFFFFFFF


@dataclass(frozen=True)
class ResolvedAddress:
    """One address to connect to, for `socket.socket`."""

    family: int
    target: Any
    """As `socket.connect` takes it."""

    @property
    def ip(self) -> str:
        return str(self.target[0])


def resolve(host: str, port: int, *, allow_private: bool) -> list[ResolvedAddress]:
    """Return all addresses of a host.

    Args:
        host: A name or an IP address.
        port: The port to connect to.
        allow_private: Whether addresses that are not public are accepted.

    Raises a SinkRefused if any of the addresses is not public: whoever controls the name could order them at will.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not a host name"
        raise SinkError(f"host {host} cannot be resolved: {reason}", "Retrying. Check the name and the DNS.") from None
    addresses = list(dict.fromkeys((int(family), target) for family, _, _, _, target in found))
    for _, target in addresses:
        if not allow_private and not is_public(str(target[0])):
            raise SinkRefused(
                f"{host} resolves to {target[0]}, which is not a public address",
                "If the receiver belongs to this network, set allow_private = true.",
            )
    return [ResolvedAddress(family, target) for family, target in addresses]


def is_public(text: str) -> bool:
    """Whether an IP address is one of the public internet: neither private, loopback, link-local, shared (CGNAT),
    multicast nor reserved, nor an IPv6 address that leads to such an IPv4 address."""
    try:
        address = ip_address(text.partition("%")[0])
    except ValueError:
        return False
    if isinstance(address, IPv4Address):
        return not any(address in network for network in _SPECIAL_IPV4)
    if (embedded := _embedded_ipv4(address)) is not None:
        return is_public(str(embedded))
    return address in _PUBLIC_IPV6 and not any(address in network for network in _SPECIAL_IPV6)


def _embedded_ipv4(address: IPv6Address) -> IPv4Address | None:
    """Return the IPv4 address that packets to an IPv6 address reach, if there is one."""
    if address.ipv4_mapped is not None:
        return address.ipv4_mapped
    if address.sixtofour is not None:
        return address.sixtofour
    if any(address in network for network in _IPV4_IN_LAST_BITS):
        return IPv4Address(int(address) & _IPV4_BITS)
    return None
