"""PostgreSQL's inet and cidr."""

from __future__ import annotations

import ipaddress
import re

from tailrace.query.scalar.scalar_error import ScalarError, invalid_text
from tailrace.query.scalar.short_cache import cache_short

Interface = ipaddress.IPv4Interface | ipaddress.IPv6Interface


@cache_short(4096)
def _value(text: str) -> Interface:
    try:
        return ipaddress.ip_interface(text.strip())
    except ValueError:
        if re.fullmatch(r"[0-9.]+(/[0-9]+)?", text.strip()):  # PostgreSQL reads more forms, such as 10.1/16 as cidr
            raise ScalarError("0A000", f'the address "{text}" is not supported') from None
        raise invalid_text("inet", text) from None


def _is_full(value: Interface) -> bool:
    return value.network.prefixlen == value.max_prefixlen


def parse_inet(text: str) -> str:
    value = _value(text)
    return address(text) if _is_full(value) else f"{address(text)}/{value.network.prefixlen}"


def parse_cidr(text: str) -> str:
    value = _value(text)
    if value.ip != value.network.network_address:
        raise ScalarError("22P02", f'invalid cidr value: "{text}"')
    return f"{address(text)}/{value.network.prefixlen}"


def key(text: str) -> str:
    """A text that sorts as the value does: by family, network, length of the mask, address."""
    value = _value(text)
    network = value.network
    return f"{value.version}{int(network.network_address):032x}{network.prefixlen:03d}{int(value.ip):032x}"


def address(text: str) -> str:
    """The address without the mask, as PostgreSQL writes it."""
    ip = _value(text).ip
    return _address_text(ip)


def _address_text(ip: ipaddress.IPv4Address | ipaddress.IPv6Address) -> str:
    if isinstance(ip, ipaddress.IPv6Address):
        if ip.ipv4_mapped is not None:
            return f"::ffff:{ip.ipv4_mapped}"
        # PostgreSQL writes the last 32 bits after 96 zeros like an IPv4 address.
        if 1 << 16 <= int(ip) < 1 << 32:
            return f"::{ipaddress.IPv4Address(int(ip))}"
    return str(ip)


def full_text(text: str) -> str:
    """As a cast to text gives it: always with the mask."""
    return f"{address(text)}/{_value(text).network.prefixlen}"


def family(text: str) -> int:
    return _value(text).version


def mask_length(text: str) -> int:
    return _value(text).network.prefixlen


def network(text: str) -> str:
    found = _value(text).network
    return f"{_address_text(found.network_address)}/{found.prefixlen}"


def broadcast(text: str) -> str:
    found = _value(text).network
    return parse_inet(f"{found.broadcast_address}/{found.prefixlen}")


def netmask(text: str) -> str:
    return _address_text(_value(text).network.netmask)


def _contains(outer: Interface, inner: Interface) -> bool:
    return outer.version == inner.version and int(inner.ip) >> (outer.max_prefixlen - outer.network.prefixlen) == int(
        outer.ip
    ) >> (outer.max_prefixlen - outer.network.prefixlen)


def is_within(a: str, b: str) -> bool:
    x, y = _value(a), _value(b)
    return x.network.prefixlen > y.network.prefixlen and _contains(y, x)


def is_within_or_equal(a: str, b: str) -> bool:
    x, y = _value(a), _value(b)
    return x.network.prefixlen >= y.network.prefixlen and _contains(y, x)


def overlaps(a: str, b: str) -> bool:
    return is_within_or_equal(a, b) or is_within_or_equal(b, a)
