"""Checks a server: that the sink can log in, has the rights that it needs, and finds what it asks of a server."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from tailrace.errors import TailraceError
from tailrace.finding import Finding, Severity
from tailrace.sinks.valkey.client import ValkeyClient
from tailrace.sinks.valkey.command import CommandBatch
from tailrace.sinks.valkey.options import ValkeyOptions
from tailrace.sinks.valkey.own_key import OwnKeys
from tailrace.sinks.valkey.server import problems
from tailrace.sinks.valkey.valkey_error import ServerError

_OWN: Final = (
    *(("HSET", "{}", "field", "value"), ("HDEL", "{}", "field"), ("HMGET", "{}", "field"), ("HGETALL", "{}")),
    *(("SET", "{}", "value"), ("GET", "{}"), ("SADD", "{}", "value"), ("SREM", "{}", "value"), ("SMEMBERS", "{}")),
    *(("SCARD", "{}"), ("SRANDMEMBER", "{}", "1"), ("SMISMEMBER", "{}", "value"), ("SDIFFSTORE", "{}", "{}", "{}")),
    *(("RENAME", "{}", "{}"), ("EXISTS", "{}"), ("DEL", "{}")),
)
"""The commands on the sink's own keys."""
_DATA: Final = {
    "hash": (("UNLINK", "{}"), ("HSET", "{}", "field", "value"), ("HMGET", "{}", "field"), ("EXPIRE", "{}", "1")),
    "json": (("UNLINK", "{}"), ("SET", "{}", "value"), ("GET", "{}")),
    "stream": (("XADD", "{}", "*", "field", "value"), ("XINFO", "STREAM", "{}")),
    "invalidate": (("UNLINK", "{}"), ("SCAN", "0")),
}
"""The commands on the keys of tables, by mode."""


def check_server(name: str, options: ValkeyOptions, keys: Iterable[str] = ()) -> Iterator[Finding]:
    """Report what is wrong. Changes nothing.

    Args:
        name: The sink's name.
        options: Its options.
        keys: Examples of the keys that it will write.
    """
    subject = f"sink {name}"
    try:
        client = ValkeyClient(options, f"tailrace-{name}")
    except TailraceError as error:
        yield Finding(Severity.ERROR, subject, str(error), error.hint)
        return
    try:
        yield from _findings(client, name, options, keys)
    except TailraceError as error:
        yield Finding(Severity.ERROR, subject, str(error), error.hint)
    finally:
        client.close()


def _findings(client: ValkeyClient, name: str, options: ValkeyOptions, keys: Iterable[str]) -> Iterator[Finding]:
    subject = f"sink {name}"
    for error in problems(client, options):
        yield Finding(Severity.ERROR, subject, str(error), error.hint)
    refused: dict[str, str] = {}
    if options.mode != "invalidate":
        refused |= _refused(client, OwnKeys(name).state, _OWN)
    for key in keys:
        refused |= _refused(client, key, _DATA[options.mode])
    if options.channel:
        refused |= _refused(client, options.channel, (("PUBLISH", "{}", "key"),))
    for command, key in refused.items():
        yield Finding(
            Severity.ERROR,
            subject,
            f"the user may not run {command} on {key}",
            f"ACL SETUSER {options.user or 'default'} +{command.lower()} ~{key}",
        )


def _refused(client: ValkeyClient, key: str, commands: Iterable[tuple[str, ...]]) -> dict[str, str]:
    """Queue commands in a transaction that is discarded: the server checks rights as it queues them."""
    wanted = list(commands)
    batch = CommandBatch()
    batch.add("MULTI")
    for words in wanted:
        batch.add(*[word.replace("{}", key) for word in words])
    batch.add("DISCARD")
    answers = client.pipeline(batch)[1:-1]
    return {
        words[0]: key
        for words, answer in zip(wanted, answers, strict=True)
        if isinstance(answer, ServerError) and answer.code == "NOPERM"
    }
