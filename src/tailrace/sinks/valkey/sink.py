"""The sink `valkey`. Its class depends on the mode: rows, streams, or invalidation."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from tailrace.delivery.sink_settings import SinkContext
from tailrace.sinks.valkey.options import ValkeyOptions
from tailrace.sinks.valkey.row_sink import RowSink

if TYPE_CHECKING:
    from tailrace.delivery.contract import Sink


class ValkeySink:
    """Makes the sink of a mode."""

    Options: ClassVar[type] = ValkeyOptions
    start: ClassVar[str] = RowSink.start
    loads_tables: ClassVar[bool] = True

    def __new__(cls, name: str, options: ValkeyOptions, context: SinkContext) -> Sink:  # type: ignore[misc]
        return RowSink(name, options, context)
