"""The settings of envelopes and encodings that message sinks share, and the construction of an envelope from them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final, Self, get_args

from tailrace.errors import ConfigError
from tailrace.settings.secret import with_picklable_secrets
from tailrace.sinks.messages.cloudevents_envelope import CloudEventsEnvelope
from tailrace.sinks.messages.connect_time import TimeMode
from tailrace.sinks.messages.connect_type import UNAVAILABLE, TypeOptions
from tailrace.sinks.messages.debezium_envelope import DebeziumEnvelope
from tailrace.sinks.messages.envelope import Envelope
from tailrace.sinks.messages.outbox_envelope import OutboxColumns, OutboxEnvelope
from tailrace.sinks.messages.payload_encoding import ENCODINGS, MessageEncoding
from tailrace.sinks.messages.registry_encoding import RegistryEncoding
from tailrace.sinks.messages.registry_options import REGISTRY_ENCODINGS, RegistryOptions
from tailrace.sinks.messages.row_envelope import RowEnvelope
from tailrace.sinks.messages.sequin_envelope import SequinEnvelope
from tailrace.sinks.messages.tailrace_envelope import TailraceEnvelope

ENVELOPES: Final = ("tailrace", "debezium", "row", "outbox", "cloudevents", "sequin")


def _choice(*choices: str) -> Any:
    return field(default=choices[0], metadata={"choices": choices})


@dataclass(frozen=True)
class EnvelopeOptions(RegistryOptions):
    """A sink's own options derive from this class, and call its `__post_init__` if they have one themselves. Names
    after an envelope's are for that envelope only."""

    envelope: str = _choice(*ENVELOPES)
    encoding: str = _choice("json", "msgpack", *REGISTRY_ENCODINGS)
    """JSON by default: every consumer reads it."""
    debezium_schemas: bool = False
    """Connect's `schemas.enable`. Schemas make a message several times as large."""
    debezium_tombstones: bool = True
    """`tombstones.on.delete`."""
    debezium_truncates: bool = False
    """Debezium skips truncates unless `skipped.operations` says otherwise."""
    debezium_decimals: str = _choice("precise", "double", "string")
    """`decimal.handling.mode`."""
    debezium_times: str = _choice(*get_args(TimeMode))
    """`time.precision.mode`."""
    debezium_unavailable: str = UNAVAILABLE
    """`unavailable.value.placeholder`."""
    cloudevents_mode: str = _choice("structured", "binary")
    outbox_id: str = OutboxColumns.id
    outbox_aggregate_id: str = OutboxColumns.aggregate_id
    outbox_type: str = OutboxColumns.type
    outbox_payload: str = OutboxColumns.payload

    def to_picklable(self) -> Self:
        """Return the options with secrets that can be pickled, for executors."""
        return with_picklable_secrets(self)

    def check_envelope(self) -> None:
        """Raise a ConfigError if the encoding does not suit the envelope."""
        self.check_registry(self.encoding)
        has_registry = self.encoding in REGISTRY_ENCODINGS
        if self.envelope == "outbox" and has_registry:
            raise ConfigError(
                f"envelope outbox publishes payloads as the application wrote them, not as {self.encoding}",
                'Set encoding = "json"; the application may write Avro into a column of type bytea.',
            )
        if self.envelope == "debezium" and self.debezium_schemas and has_registry:
            raise ConfigError(
                "debezium_schemas puts schemas into messages, and the registry has them already",
                "Remove debezium_schemas.",
            )
        if self.envelope == "debezium" and self.encoding == "msgpack":
            raise ConfigError("envelope debezium is JSON, not msgpack", 'set encoding = "json"')
        if self.envelope == "cloudevents" and self.cloudevents_mode == "structured" and self.encoding != "json":
            raise ConfigError(
                f"a structured CloudEvent is JSON, not {self.encoding}",
                'set encoding = "json" or cloudevents_mode = "binary"',
            )

    def make_envelope(self, sink: str, database: str, prefix: str, header_prefix: str) -> Envelope:
        """Return the envelope.

        Args:
            sink: The sink's name.
            database: The source's name.
            prefix: Debezium's `topic.prefix`.
            header_prefix: What the transport puts before attributes of binary CloudEvents: `ce_`, `ce-`.
        """
        self.check_envelope()
        encoding = self._encoding(database)
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
                    encoding=encoding if isinstance(encoding, RegistryEncoding) else None,
                )
            case "row":
                return RowEnvelope(encoding)
            case "outbox":
                return OutboxEnvelope(
                    OutboxColumns(self.outbox_id, self.outbox_aggregate_id, self.outbox_type, self.outbox_payload)
                )
            case "cloudevents":
                is_structured = self.cloudevents_mode == "structured"
                return CloudEventsEnvelope(database, is_structured, encoding, header_prefix)
            case "sequin":
                return SequinEnvelope(encoding, sink, database)
        return TailraceEnvelope(encoding)

    def _encoding(self, database: str) -> MessageEncoding:
        if self.encoding in REGISTRY_ENCODINGS:
            return self.registry_encoding(self.encoding, database)
        return ENCODINGS[self.encoding]
