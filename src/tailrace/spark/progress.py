"""What Spark reports of the sinks' queries, for their status and metrics."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from tailrace.delivery.pipeline import Pipeline

_PREFIX: Final = "tailrace "


def query_name(sink: str) -> str:
    """The name of a sink's query, in Spark's pages and events."""
    return f"{_PREFIX}{sink}"


class ProgressListener(StreamingQueryListener):
    """Gives each pipeline the figures of its query's batches. Spark calls it when a batch has ended."""

    def __init__(self, pipelines: Callable[[], Mapping[str, Pipeline]]) -> None:
        self._pipelines = pipelines

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802 (Spark's name)
        """The pipeline started it."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802 (Spark's name)
        progress = event.progress
        pipeline = self._pipelines().get((progress.name or "").removeprefix(_PREFIX))
        if pipeline is not None and progress.numInputRows:
            pipeline.record_batch(progress.numInputRows, progress.batchDuration / 1000)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802 (Spark's name)
        """Nothing to count."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802 (Spark's name)
        """The pipeline watches its query itself."""
