"""The engine's own Spark session: with what its sinks need, tuned for many short batches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tailrace.delivery.sink_settings import ConfiguredSink
from tailrace.settings import Settings
from tailrace.spark.session import StartingSession, processors

_SETTINGS: Final = {
    # Batches are short and their work is done in Python. Java's second compiler would still be compiling after a minute
    # of them, and saves nothing in the end: a batch takes 91 ms of processor time instead of 148 in the first minute,
    # and 77 instead of 89 after three (measured). The serial collector takes less memory than the others: 425 MB for
    # one sink, where the default takes 595 and the parallel one 997.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xmn64m",
    # Jobs of both kinds, RDDs and queries, share Python workers then. Tracebacks have a few more lines.
    "spark.sql.execution.pyspark.udf.simplifiedTraceback.enabled": "false",
}

_WITHOUT_STATEMENTS: Final = {
    # Spark only filters the tasks' results: interpreting that takes less than loading the compiler for it.
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}


def start(settings: Settings, configured: Sequence[ConfiguredSink], master: str | None = None) -> StartingSession:
    """Start the session of an engine. Java starts in the background, so call this before slow imports."""
    packages = dict.fromkeys(package for c in configured for package in c.sink.packages)
    given = _SETTINGS | ({"spark.ui.enabled": "true"} if settings.spark.ui else {})
    if not any(c.common.sql or c.common.transform for c in configured):
        given |= _WITHOUT_STATEMENTS
    if master is None:
        # A batch that stays open occupies a slot and hardly any processor.
        slots = max(processors() + len(configured), 2 * len(configured))
        master = f"local[{slots}]"
        given["spark.default.parallelism"] = str(processors())
    sinks = sorted({type(c.sink).__module__ for c in configured})
    return StartingSession("tailrace", master, packages=tuple(packages), settings=given, imports=sinks)
