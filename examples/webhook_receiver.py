"""Receives the changes of a `webhook` sink: verifies each request, and stores each change once in SQLite.

Needs starlette, uvicorn and standardwebhooks. The secret is the sink's:

    WEBHOOK_SECRET=whsec_… python examples/webhook_receiver.py changes.db 8080

The sink sends a change again until it is answered with 2xx, so a change may come more than once: its id tells. A
request is answered once its changes are on disk. This works for any size of batch, in the envelopes `tailrace`,
`cloudevents`, `sequin` and `row`.
"""

from __future__ import annotations

import base64
import json
import os
import sqlite3
import sys
import threading
import zlib
from typing import Any

import uvicorn
from standardwebhooks.webhooks import Webhook, WebhookVerificationError
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

MAX_BYTES = 64 * 1024 * 1024
"""Of a request, decompressed."""


class ChangeStore:
    """The changes in SQLite, in the order in which they came first."""

    def __init__(self, path: str) -> None:
        self._database = sqlite3.connect(path, check_same_thread=False)
        self._database.execute("PRAGMA journal_mode = WAL")
        self._database.execute("PRAGMA synchronous = FULL")
        self._database.execute(
            "CREATE TABLE IF NOT EXISTS changes (number INTEGER PRIMARY KEY, id TEXT UNIQUE, change TEXT)"
        )
        self._lock = threading.Lock()

    def add(self, changes: list[tuple[str, str]]) -> int:
        """Store changes with their ids, on disk when it returns. Returns how many were new."""
        with self._lock, self._database:
            before = self._database.total_changes
            self._database.executemany(
                "INSERT INTO changes (id, change) VALUES (?, ?) ON CONFLICT (id) DO NOTHING", changes
            )
            return self._database.total_changes - before


def changes_of(content: Any, request_id: str) -> list[tuple[str, str]]:
    """Return the changes of a request, each with an id that is the same whenever it is sent."""
    if not isinstance(content, list):
        return [(request_id, json.dumps(content, ensure_ascii=False))]
    return [(change_id(change), json.dumps(change, ensure_ascii=False)) for change in content]


def change_id(change: dict[str, Any]) -> str:
    """Return the id of one change in a batch, as its envelope has it."""
    if "msg_id" in change:
        return str(change["msg_id"])
    if "metadata" in change:
        return base64.b64decode(change["metadata"]["idempotency_key"]).decode()
    return str(change["id"])


async def read_body(request: Request) -> bytes | None:
    """Return the content, decompressed; None if it is too large."""
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > MAX_BYTES:
            return None
    if request.headers.get("content-encoding") != "gzip":
        return bytes(body)
    unpacker = zlib.decompressobj(wbits=31)
    content = unpacker.decompress(bytes(body), MAX_BYTES)
    return None if unpacker.unconsumed_tail else content


def make_app(store: ChangeStore, webhook: Webhook) -> Starlette:
    async def receive(request: Request) -> Response:
        try:
            content = await read_body(request)
        except zlib.error:
            return PlainTextResponse("not gzip", 400)
        if content is None:
            return PlainTextResponse("too large", 413)
        try:
            changes = webhook.verify(content, dict(request.headers))
        except (WebhookVerificationError, ValueError):
            return PlainTextResponse("not signed by the sink", 401)
        found = changes_of(changes, request.headers["webhook-id"])
        new = await run_in_threadpool(store.add, found)
        print(f"{request.url.path}: {new} new of {len(found)}", flush=True)
        return Response(status_code=204)

    return Starlette(routes=[Route("/{path:path}", receive, methods=["POST", "PUT", "PATCH", "DELETE"])])


if __name__ == "__main__":
    app = make_app(ChangeStore(sys.argv[1]), Webhook(os.environ["WEBHOOK_SECRET"]))
    uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[2]), log_level="warning", access_log=False)
