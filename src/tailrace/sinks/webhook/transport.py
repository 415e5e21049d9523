"""Publishes messages as HTTP requests. The progress is in the store: a receiver has no place for it."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from tailrace.sinks.messages import stored_progress
from tailrace.sinks.messages.message import OutgoingMessages
from tailrace.sinks.messages.progress import Progress
from tailrace.sinks.webhook import attempt_record
from tailrace.sinks.webhook.attempt_record import AttemptRecord
from tailrace.sinks.webhook.dispatcher import Dispatcher
from tailrace.sinks.webhook.options import WebhookOptions
from tailrace.sinks.webhook.request_content import ContentFormat, RequestMaker
from tailrace.sinks.webhook.request_plan import MessageOrder, RequestLimits
from tailrace.sinks.webhook.sender import SignedSender, make_authorization
from tailrace.store import Store


class WebhookTransport:
    """The connections of one sink to its receiver."""

    def __init__(self, sink: str, options: WebhookOptions, fixed_headers: Mapping[str, str], store: Store) -> None:
        self._sink = sink
        self._options = options
        self._store = store
        self._format = ContentFormat(options.envelope, options.encoding, options.batch > 1)
        self._limits = RequestLimits(options.batch, options.batch_bytes, options.connections)
        self._authorization = make_authorization(options)
        self._senders = [
            SignedSender.make(options, self._authorization, fixed_headers) for _ in range(options.connections)
        ]
        self._threads = ThreadPoolExecutor(options.connections, f"webhook {sink}")
        self._record = AttemptRecord()

    def progress(self) -> Progress | None:
        # An attempt in another process may have left a record since. Both are read at the same time.
        record = self._threads.submit(attempt_record.load, self._store, self._sink)
        progress = stored_progress.load(self._store, self._sink)
        self._record = record.result()
        return progress

    def publish(self, messages: OutgoingMessages, after: Progress) -> None:
        had_record = not self._record.is_empty
        self._dispatch(_without(messages, self._record))
        stored_progress.save(self._store, self._sink, after)
        self._record.forget(messages.ids.to_pylist())
        if had_record:
            attempt_record.save(self._store, self._sink, self._record)

    def _dispatch(self, messages: OutgoingMessages) -> None:
        if not len(messages):
            return
        maker = RequestMaker(messages, self._format)
        most = self._record.most
        order = MessageOrder.of(messages, {row: most[id] for row, id in enumerate(maker.ids) if id in most})
        dispatcher = Dispatcher(
            str(self._options.receiver.origin),
            maker,
            order,
            self._limits,
            self._options.attempts,
            self._record,
        )
        try:
            dispatcher.run(self._senders, self._threads)
        except Exception:
            attempt_record.save(self._store, self._sink, self._record)
            raise

    def close(self) -> None:
        self._threads.shutdown()
        for sender in self._senders:
            sender.close()
        self._authorization.close()


def _without(messages: OutgoingMessages, record: AttemptRecord) -> OutgoingMessages:
    """Leave out what the receiver has of an attempt that failed."""
    if not record.delivered:
        return messages
    is_missing = [id not in record.delivered for id in messages.ids.to_pylist()]
    return messages if all(is_missing) else messages.take(np.flatnonzero(is_missing))
