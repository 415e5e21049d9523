"""The settings of envelopes and encodings that message sinks share, and the construction of an envelope from them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from tailrace.errors import ConfigError
from tailrace.sinks.messages.cloudevents_envelope import CloudEventsEnvelope
from tailrace.sinks.messages.connect_type import UNAVAILABLE, TypeOptions
from tailrace.sinks.messages.debezium_envelope import DebeziumEnvelope
from tailrace.sinks.messages.envelope import Envelope
from tailrace.sinks.messages.outbox_envelope import OutboxColumns, OutboxEnvelope
from tailrace.sinks.messages.payload_encoding import ENCODINGS
from tailrace.sinks.messages.row_envelope import RowEnvelope
from tailrace.sinks.messages.sequin_envelope import SequinEnvelope
from tailrace.sinks.messages.tailrace_envelope import TailraceEnvelope

ENVELOPES: Final = ("tailrace", "debezium", "row", "outbox", "cloudevents", "sequin")


def _choice(*choices: str) -> Any:
    return field(default=choices[0], metadata={"choices": choices})


@dataclass(frozen=True)
class EnvelopeOptions:
    """A sink's own options derive from this class. Names after an envelope's are for that envelope only."""

    envelope: str = _choice(*ENVELOPES)
    encoding: str = _choice("json", "msgpack")
    """JSON by default: every consumer reads it."""
    debezium_schemas: bool = False
    """Connect's `schemas.enable`. Schemas make a message several times as large."""
    debezium_tombstones: bool = True
    """`tombstones.on.delete`."""
    debezium_truncates: bool = False
    """Debezium skips truncates unless `skipped.operations` says otherwise."""
    debezium_decimals: str = _choice("precise", "double", "string")
    """`decimal.handling.mode`."""
    debezium_times: str = _choice("adaptive", "adaptive_time_microseconds", "connect")
    """`time.precision.mode`."""
    debezium_unavailable: str = UNAVAILABLE
    """`unavailable.value.placeholder`."""
    cloudevents_mode: str = _choice("structured", "binary")
    outbox_id: str = OutboxColumns.id
    outbox_aggregate_id: str = OutboxColumns.aggregate_id
    outbox_type: str = OutboxColumns.type
    outbox_payload: str = OutboxColumns.payload

    def check_envelope(self) -> None:
        """Raise a ConfigError if the encoding does not suit the envelope."""
        is_json = self.envelope == "debezium" or (
            self.envelope == "cloudevents" and self.cloudevents_mode == "structured"
        )
        if is_json and self.encoding != "json":
            raise ConfigError(f"envelope {self.envelope} is JSON, not {self.encoding}", 'set encoding = "json"')

    def make_envelope(self, sink: str, database: str, prefix: str, header_prefix: str) -> Envelope:
        """Return the envelope.

        Args:
            sink: The sink's name.
            database: The source's name.
            prefix: Debezium's `topic.prefix`.
            header_prefix: What the transport puts before attributes of binary CloudEvents: `ce_`, `ce-`.
        """
        self.check_envelope()
        encoding = ENCODINGS[self.encoding]
        match self.envelope:
            case "debezium":
                types: Any = {"decimal": self.debezium_decimals, "time": self.debezium_times}
                return DebeziumEnvelope(
                    prefix,
                    database,
                    has_schemas=self.debezium_schemas,
                    has_tombstones=self.debezium_tombstones,
                    has_truncates=self.debezium_truncates,
                    types=TypeOptions(**types, unavailable=self.debezium_unavailable),
                )
            case "row":
                return RowEnvelope(encoding)
            case "outbox":
                return OutboxEnvelope(
                    OutboxColumns(self.outbox_id, self.outbox_aggregate_id, self.outbox_type, self.outbox_payload)
                )
            case "cloudevents":
                is_structured = self.cloudevents_mode == "structured"
                return CloudEventsEnvelope(database, is_structured, self.encoding, header_prefix)
            case "sequin":
                return SequinEnvelope(encoding, sink, database)
        return TailraceEnvelope(encoding)
