"""A source with its log, and the HTTP server over them, for tests of the dashboard and of what it asks."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tests.fixtures.browser import Page
from tests.fixtures.postgres import Database
from tests.sinks.captured_source import CapturedSource

from tailrace import sinks
from tailrace.change import Change
from tailrace.delivery import control
from tailrace.delivery.dead_letters import DeadLetters
from tailrace.delivery.status import Condition, SinkStatus
from tailrace.embedded.process import free_port
from tailrace.errors import PoisonError
from tailrace.log import published_table
from tailrace.log.reader import LogReader
from tailrace.ops.explorer import Explorer
from tailrace.ops.http import HttpServer, Service, routes
from tailrace.ops.metric_history import MetricHistory
from tailrace.ops.probe import cached_overview, measured_overview
from tailrace.ops.status import CaptureStatus, Overview
from tailrace.settings import HttpSettings

REPLICA = {"type": "postgres", "name": "replica", "url": "postgresql://nobody@localhost/none"}


class DashboardScene:
    """Everything is real but the processes: the sink's status is what a pipeline would report."""

    def __init__(self, source: Database, directory: Path) -> None:
        self.source = source
        source.execute("CREATE PUBLICATION tailrace FOR ALL TABLES")
        self.captured = CapturedSource(source, directory)
        self.store = self.captured.store
        self.settings = replace(self.captured.given, sinks=(REPLICA,))
        self.sinks = sinks.from_settings(self.settings, {})
        self.delivered = 0
        self.more_sinks: list[SinkStatus] = []
        """Sinks beside `replica`, and what they report."""
        self.captured_more: dict[str, Any] = {}
        """What capture reports beside its position."""
        self.measured = measured_overview(self.store, self.overview)
        self.history = MetricHistory(self.measured)

    def capture(self, *statements: str, snapshot: Any = ()) -> list[Change]:
        self.captured.capture(*statements, snapshot=snapshot)
        relations = {c.relation.oid: c.relation for c in LogReader(self.store).changes() if c.relation is not None}
        published_table.save(self.store, relations.values())
        return list(LogReader(self.store).changes())

    def overview(self) -> Overview:
        state: Condition = "paused" if control.load(self.store, "replica").is_paused else "running"
        known = SinkStatus.initial("replica", "postgres", "running")
        end = LogReader(self.store).end_lsn()
        sink = replace(
            known, state=state, cursor=end, changes=self.delivered, steps=self.delivered,
            latency_seconds=0.12, seal_latency_seconds=0.05,
            dead_letters=len(list(self.store.list("cursors/replica/dead_letters"))), updated_at=datetime.now(UTC),
        )  # fmt: skip
        capture = CaptureStatus("streaming", durable_lsn=end, received_lsn=end, **self.captured_more)
        return Overview(capture=capture, sinks=[sink, *self.more_sinks])

    def add_dead_letter(self, change: Change, reason: str = 'invalid input value for enum mood: "glad"') -> None:
        DeadLetters(LogReader(self.store), "replica").put(PoisonError(reason, "", (str(change.position),)))

    @contextmanager
    def serving(self, **given: Any) -> Iterator[str]:
        """Serve, and yield the address."""
        http = HttpSettings(port=free_port(), **given)
        overview = cached_overview(self.settings, self.store, self.measured)
        service = Service(
            overview,
            self.overview,
            lambda: None,
            sinks=["replica"],
            pause=lambda name: _ignore(control.pause(self.store, name)),
            resume=lambda name: _ignore(control.resume(self.store, name)),
            history=self.history,
            explorer=Explorer(self.store, self.sinks, overview) if http.explorer else None,
        )
        with HttpServer(http, routes(service)) as server:
            yield server.url


def picture(page: Page, name: str) -> None:
    """Keep a picture of the page, if `SCREENSHOTS` names a directory."""
    if directory := os.environ.get("SCREENSHOTS"):
        page.screenshot(Path(directory) / f"{name}.png")


def _ignore(_: object) -> None: ...
