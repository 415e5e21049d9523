"""What the server is: its version, role, memory policy and append-only file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from tailrace.errors import SinkError, SinkRefused, TailraceError
from tailrace.sinks.valkey.client import ValkeyClient
from tailrace.sinks.valkey.options import ValkeyOptions

_OLDEST: Final = (6, 2)
_WAITAOF: Final = (7, 2)


@dataclass(frozen=True)
class Server:
    info: Mapping[str, str]

    @classmethod
    def of(cls, client: ValkeyClient) -> Server:
        lines = client.run("INFO", "everything").decode(errors="replace").splitlines()
        return cls(dict(line.split(":", 1) for line in lines if ":" in line))

    @property
    def name(self) -> str:
        """The product and its version, for messages."""
        if "valkey_version" in self.info:
            return f"Valkey {self.info['valkey_version']}"
        return f"Redis {self.info.get('redis_version', '')}"

    @property
    def version(self) -> tuple[int, ...]:
        """The version of Redis that it is compatible with."""
        parts = self.info.get("redis_version", "0").split(".")[:2]
        return tuple(int(part) if part.isdecimal() else 0 for part in parts)

    @property
    def is_replica(self) -> bool:
        return self.info.get("role", "master") != "master"

    @property
    def is_cluster(self) -> bool:
        return self.info.get("cluster_enabled") == "1"

    @property
    def has_aof(self) -> bool:
        return self.info.get("aof_enabled") == "1"

    @property
    def eviction(self) -> str:
        """The policy by which the server may remove any key; empty if it may not."""
        policy = self.info.get("maxmemory_policy", "")
        return policy if policy.startswith("allkeys") and self.info.get("maxmemory", "0") != "0" else ""


def require_suitable(client: ValkeyClient, options: ValkeyOptions) -> None:
    """Raise if the sink cannot keep its promises at this server."""
    for problem in problems(client, options):
        raise problem


def problems(client: ValkeyClient, options: ValkeyOptions) -> Iterator[TailraceError]:
    """Yield what the sink cannot work with. Invalidation needs no transactions, and keeps nothing at the server."""
    server = Server.of(client)
    if server.version < _OLDEST:
        yield SinkRefused(f"the server is {server.name}, which is too old", "Use Valkey, or Redis 6.2 or newer.")
    if server.is_cluster:
        yield SinkRefused(
            "the server is part of a cluster, and a transaction cannot change keys of several slots",
            "Use a server without cluster mode.",
        )
    if server.is_replica:
        yield SinkError("the server is a replica", "Retrying, in case it is promoted; else correct `url`.")
    if options.mode == "invalidate":
        return
    if server.eviction:
        yield SinkRefused(
            f"the server may evict any key (maxmemory-policy {server.eviction}), the sink's progress among them",
            "CONFIG SET maxmemory-policy noeviction, or volatile-lru, which only evicts rows if `ttl_s` is set.",
        )
    if options.durability == "aof" and not server.has_aof:
        yield SinkRefused(
            "the server has no append-only file, so nothing survives its crash",
            'CONFIG SET appendonly yes, or set durability = "replicas" or "none".',
        )
    if options.durability == "aof" and server.version < _WAITAOF:
        yield SinkRefused(
            f"{server.name} cannot say when changes are on disk (WAITAOF)",
            'Use Valkey, or Redis 7.2 or newer, or set durability = "replicas" or "none".',
        )
