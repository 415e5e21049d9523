"""librdkafka's errors as Tailrace's: which of them last until an operator acts, and what they say."""

from __future__ import annotations

import re
import time
from typing import Final

from confluent_kafka import KafkaError, KafkaException

from tailrace.errors import SinkError, SinkRefused, TailraceError

_REFUSED: Final = frozenset(
    {
        KafkaError._INVALID_ARG,
        KafkaError._SSL,
        KafkaError.SASL_AUTHENTICATION_FAILED,
        KafkaError.UNSUPPORTED_SASL_MECHANISM,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        KafkaError.INVALID_CONFIG,
        KafkaError.INVALID_PARTITIONS,
        KafkaError.INVALID_REPLICATION_FACTOR,
        KafkaError.TOPIC_EXCEPTION,
        KafkaError.POLICY_VIOLATION,
        KafkaError.INVALID_TRANSACTION_TIMEOUT,
    }
)
"""Errors that last until an operator acts."""
_FENCED: Final = frozenset({KafkaError._FENCED, KafkaError.INVALID_PRODUCER_EPOCH, KafkaError.PRODUCER_FENCED})
_VAGUE: Final = frozenset({KafkaError._TIMED_OUT, KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN})
_REJECTED_CERTIFICATE: Final = re.compile(
    "certificate verify failed|alert (bad certificate|certificate|unknown ca|handshake failure)"
)
"""By this side or by the server. librdkafka does not always report it as an error of TLS."""
_REJECTED_CLIENT: Final = re.compile("invalid_client|invalid_grant|invalid_scope|unauthorized_client")
"""What an OAuth server answers to wrong credentials (RFC 6749). Anything else may be an outage."""
_TOKEN: Final = "OAUTHBEARER token"  # noqa: S105 (not a password)
_LOCAL: Final = "Local: "
"""Begins a reason within the client: the connection broke while it authenticated."""


def is_refusal(error: KafkaError) -> bool:
    """Whether an error lasts until an operator acts."""
    text = error.str()
    if error.code() == KafkaError._AUTHENTICATION:
        return bool(_REJECTED_CLIENT.search(text)) if _TOKEN in text else _LOCAL not in text
    return error.code() in _REFUSED or bool(_REJECTED_CERTIFICATE.search(text))


def is_fenced(error: KafkaError) -> bool:
    """Whether another producer with the same transactional id has taken over."""
    return error.code() in _FENCED


def as_sink_error(error: KafkaError, action: str) -> TailraceError:
    """Return the error to raise for one of librdkafka's."""
    text = f"{action}: {error.str()} ({error.name()})"
    if is_refusal(error):
        return SinkRefused(text, _refusal_hint(error))
    if is_fenced(error):
        return SinkError(text, "Another process publishes for this sink. If it is not this one, stop it.")
    if error.code() in _VAGUE:
        return SinkError(
            text,
            "Retrying until the servers answer. Do they require TLS, or `sasl` and a user? With OAUTHBEARER: does"
            " oauth_token_url answer?",
        )
    if _TOKEN in text:
        return SinkError(text, "Retrying until oauth_token_url answers.")
    return SinkError(text, "Retrying until the servers answer.")


def _refusal_hint(error: KafkaError) -> str:
    if error.code() == KafkaError._SSL or _REJECTED_CERTIFICATE.search(error.str()):
        return "Check tls_ca and tls_certificate. The server's certificate has to name the host in `url`."
    if error.code() in (KafkaError._AUTHENTICATION, KafkaError.SASL_AUTHENTICATION_FAILED):
        return "Check `sasl`, and user and password or the oauth settings."
    return "`tailrace check` says which right or setting is missing."


class ReportedErrors:
    """The errors that librdkafka reports beside its calls, which time out without a reason."""

    def __init__(self) -> None:
        self._last: KafkaError | None = None
        self.refused_at: float | None = None
        """When the first refusal was reported, by the monotonic clock."""

    def __call__(self, error: KafkaError) -> None:
        if self.refused_at is None and is_refusal(error):
            self.refused_at = time.monotonic()
        # "All brokers are down" follows the errors that say why.
        if error.code() != KafkaError._ALL_BROKERS_DOWN or self._last is None:
            self._last = error

    def explain(self, error: KafkaException | None, action: str) -> TailraceError:
        """Return the error of a call, with the reported reason if the call itself has none. None: it did not end."""
        raised: KafkaError = KafkaError(KafkaError._TIMED_OUT) if error is None else error.args[0]
        reason = self._last if raised.code() in _VAGUE and self._last is not None else raised
        return as_sink_error(reason, action)
