"""The connections of a worker process, which outlive its tasks: a connection takes longer than a small step."""

from __future__ import annotations

import pickle
from contextlib import suppress

from tailrace.errors import SinkError
from tailrace.sinks.nats.client import NatsClient
from tailrace.sinks.nats.options import NatsOptions

_Pair = tuple[NatsClient, NatsClient]
"""One to publish changes, one for the bucket of schemas: the next batch is prepared while one is published."""

_idle: dict[bytes, _Pair] = {}


def take(name: str, options: NatsOptions) -> _Pair:
    """Take this process's connections of a sink, or make new ones."""
    pair = _idle.pop(_key(name, options), None)
    if pair is not None:
        try:
            for client in pair:
                client.keep_alive()  # notices a server that closed the connection since the last task
            return pair
        except SinkError:
            _close(pair)
    return NatsClient(options, name), NatsClient(options, name)


def give_back(name: str, options: NatsOptions, client: NatsClient, schema_client: NatsClient) -> None:
    """Keep connections for the next task."""
    before = _idle.pop(_key(name, options), None)
    if before is not None:
        _close(before)
    _idle[_key(name, options)] = client, schema_client


def _key(name: str, options: NatsOptions) -> bytes:
    return pickle.dumps((name, options.to_picklable()))


def _close(pair: _Pair) -> None:
    for client in pair:
        with suppress(SinkError, OSError):
            client.close()
