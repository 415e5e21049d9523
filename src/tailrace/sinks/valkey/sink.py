"""The sink `valkey`. Its class depends on the mode: rows, streams, or invalidation."""

from __future__ import annotations

from typing import ClassVar

from tailrace.delivery.contract import Sink
from tailrace.delivery.sink_settings import SinkContext
from tailrace.sinks.valkey.invalidation_sink import InvalidationSink
from tailrace.sinks.valkey.options import ValkeyOptions
from tailrace.sinks.valkey.row_sink import RowSink
from tailrace.sinks.valkey.stream_sink import StreamSink


class ValkeySink:
    """Makes the sink of a mode."""

    Options: ClassVar[type] = ValkeyOptions
    start: ClassVar[str] = RowSink.start
    loads_tables: ClassVar[bool] = True

    def __new__(cls, name: str, options: ValkeyOptions, context: SinkContext) -> Sink:  # type: ignore[misc]
        match options.mode:
            case "stream":
                return StreamSink(name, options, context)
            case "invalidate":
                return InvalidationSink(name, options, context)
        return RowSink(name, options, context)
