"""Every envelope can be made from settings, and settings that do not fit together are refused."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.pgoutput import build
from tests.sinks.messages import runs

from tailrace.errors import ConfigError
from tailrace.sinks.messages.encoder import MessageEncoder, PositionIds
from tailrace.sinks.messages.envelope_options import ENVELOPES, EnvelopeOptions
from tailrace.sinks.messages.routing import DestinationTemplate


@pytest.mark.parametrize("envelope", ENVELOPES)
def test_every_envelope_makes_messages_with_keys(envelope: str) -> None:
    table = runs.table(
        ("id", "text"), ("aggregatetype", "text"), ("aggregateid", "text"), ("type", "text"), ("payload", "jsonb")
    )
    run = runs.changes(table, build.insert((b"1", b"order", b"1", b"created", b"{}")))
    made = EnvelopeOptions(envelope=envelope).make_envelope("bus", "shop", "server", "ce_")
    (found,) = MessageEncoder(made, DestinationTemplate.parse("{table}")).encode([run], PositionIds())
    (message,) = found.messages()
    assert message.key
    assert message.value


def test_encodings_that_do_not_suit_an_envelope() -> None:
    options = EnvelopeOptions(envelope="debezium", encoding="msgpack")
    with pytest.raises(ConfigError, match="envelope debezium is JSON, not msgpack"):
        options.check_envelope()
    with pytest.raises(ConfigError):
        replace(options, envelope="cloudevents").check_envelope()
    replace(options, envelope="cloudevents", cloudevents_mode="binary").check_envelope()
