"""Decodes values to columns: JSON, MessagePack or Avro in, PostgreSQL's texts out."""

from __future__ import annotations

import json
import math
import re
import struct
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any, Final
from uuid import UUID

import numpy as np
import pyarrow as pa

from tailrace.capture.slatedb.database import shown_key
from tailrace.change import Lsn, Position
from tailrace.errors import ConfigError, DecodeError
from tailrace.settings.slatedb import ValueSettings
from tailrace.state.postgres_text import float_text

_DIGITS: Final = re.compile(r"-?[0-9]{1,19}")
_NUMERIC_DIGITS: Final = 131_072
_NUMERIC_SCALE: Final = 16_383
"""PostgreSQL's limits: digits before and after the point."""
_SINGLE_OBJECT: Final = b"\xc3\x01"
_HEADER_BYTES: Final = 10
"""Avro's single-object encoding: this mark, then the schema's CRC-64-AVRO in 8 bytes, little-endian."""
_INTEGERS: Final = {"int2": 15, "int4": 31, "int8": 63}


class ValueDecoder:
    """Decodes the values of one database."""

    def __init__(self, settings: ValueSettings) -> None:
        self._settings = settings
        self._parse = _parser(settings)
        self._columns = [(name, _CONVERSIONS[type_]) for name, type_ in settings.columns.items()]

    def texts(self, values: pa.Array, keys: pa.Array, position: Callable[[int], str]) -> list[pa.Array]:
        """The texts of each column. A NULL value, of a delete or merge, gives NULLs.

        Args:
            values: The values, as bytes.
            keys: The keys, for errors.
            position: Returns what an error says about the place of a row.
        """
        if not self._columns:
            return []
        texts: list[list[str | None]] = [[] for _ in self._columns]
        for row, value in enumerate(values.to_pylist()):
            found: list[str | None] = [None] * len(self._columns)
            if value is not None:
                try:
                    found = self._decode(value)
                except (ValueError, ArithmeticError, RecursionError) as error:
                    if self._settings.undecodable == "stop":
                        raise self._error(position(row), keys[row].as_py(), error) from error
            for column, text in zip(texts, found, strict=True):
                column.append(text)
        return [pa.array(column, pa.string()) for column in texts]

    def _decode(self, value: bytes) -> list[str | None]:
        fields = self._parse(value)
        if not isinstance(fields, Mapping):
            raise ValueError(f"it is not an object with fields, but {type(fields).__name__}")
        found: list[str | None] = []
        for name, convert in self._columns:
            field = fields.get(name)
            try:
                found.append(None if field is None else convert(field))
            except (ValueError, TypeError, ArithmeticError, OSError):
                raise ValueError(f"its field {name} is not of the column's type") from None
        return found

    def _error(self, place: str, key: bytes, reason: Exception) -> DecodeError:
        return DecodeError(
            f"{place}, key {shown_key(key)}: the value is not {self._settings.format}: {reason}",
            f"correct [source.value]{' (was the value written with this schema?)' if self._settings.schema else ''}, "
            'or set undecodable = "null" to leave its columns empty',
        )


def entry_place(seqs: pa.Array, ordinals: Any) -> Callable[[int], str]:
    """What an error says about the place of an entry."""
    return lambda row: str(Position(Lsn(seqs[row].as_py()), int(ordinals[row])))


def _parser(settings: ValueSettings) -> Callable[[bytes], Any]:
    match settings.format:
        case "json":
            return lambda value: json.loads(value, parse_float=Decimal, parse_constant=_reject)
        case "msgpack":
            import msgpack

            def unpack(value: bytes) -> Any:
                try:
                    return msgpack.unpackb(value, timestamp=3)
                except Exception as error:  # msgpack's errors have no common class
                    raise ValueError(str(error) or type(error).__name__) from error

            return unpack
        case "avro" | "avro_single_object":
            return _avro_parser(settings)
    return lambda value: value


def _reject(constant: str) -> Any:
    raise ValueError(f"{constant} is not JSON")


def _avro_parser(settings: ValueSettings) -> Callable[[bytes], Any]:
    import io

    try:
        import fastavro
    except ImportError:
        raise ConfigError("Avro values need fastavro", "run pip install 'tailrace[slatedb]'") from None
    assert settings.schema is not None
    try:
        schema = fastavro.parse_schema(json.loads(settings.schema.read_text()))
    except (OSError, ValueError, fastavro.schema.SchemaParseException) as error:
        raise ConfigError(
            f"{settings.schema} is not an Avro schema: {error}", "correct [source.value] schema"
        ) from error

    header = _SINGLE_OBJECT + bytes.fromhex(
        fastavro.schema.fingerprint(fastavro.schema.to_parsing_canonical_form(schema), "CRC-64-AVRO")
    )
    has_header = settings.format == "avro_single_object"

    def read(value: bytes) -> Any:
        if value.startswith(header) != has_header:
            raise ValueError(_header_fault(value, has_header))
        buffer = io.BytesIO(value[len(header) :] if has_header else value)
        try:
            found = fastavro.schemaless_reader(buffer, schema, None)
        except Exception as error:  # malformed bytes raise whatever the reader trips over
            raise ValueError(str(error) or type(error).__name__) from error
        if buffer.read(1):
            raise ValueError("it is longer than the schema says")
        return found

    return read


def _header_fault(value: bytes, has_header: bool) -> str:
    if not has_header:
        return "it begins with the schema's fingerprint: set format to avro_single_object"
    if not value.startswith(_SINGLE_OBJECT) or len(value) < _HEADER_BYTES:
        return "it does not begin with a fingerprint: values without one are format avro"
    return f"it has the fingerprint of another schema, {value[len(_SINGLE_OBJECT) : _HEADER_BYTES].hex()}"


def _integer(bits: int) -> Callable[[Any], str]:
    def convert(value: Any) -> str:
        # Programs whose numbers are floats write large integers as strings.
        if isinstance(value, str) and not _DIGITS.fullmatch(value):
            raise ValueError
        if isinstance(value, bool) or not isinstance(value, str | int | float | Decimal):
            raise ValueError
        if abs(Decimal(value)) > 1 << bits:  # first, because int() of a huge exponent takes forever
            raise ValueError
        number = int(value)
        if not -(1 << bits) <= number < 1 << bits or (not isinstance(value, str) and number != value):
            raise ValueError
        return str(number)

    return convert


def _boolean(value: Any) -> str:
    if not isinstance(value, bool):
        raise ValueError
    return "t" if value else "f"


def _float(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        raise ValueError
    # As PostgreSQL prints it, so that a change has the same text as the row in a snapshot.
    return float_text(repr(float(value)), 64)


def _real(value: Any) -> str:
    (near,) = struct.unpack("<f", struct.pack("<f", float(_float(value))))  # raises OverflowError
    return float_text(str(np.float32(near)), 32)


def _numeric(value: Any) -> str:
    if isinstance(value, bool | bytes):
        raise ValueError
    number = Decimal(repr(value)) if isinstance(value, float) else Decimal(value)
    return f"{_checked(number):f}"


def _checked(number: Decimal) -> Decimal:
    """A number that numeric can hold."""
    exponent = number.as_tuple().exponent
    if not isinstance(exponent, int) or number.adjusted() >= _NUMERIC_DIGITS or exponent < -_NUMERIC_SCALE:
        raise ValueError
    return number


def _text(value: Any) -> str:
    match value:
        case str():
            text = value
        case bool() | int() | float() | Decimal() | UUID():
            text = str(value).lower() if isinstance(value, bool) else str(value)
        case _:
            raise ValueError
    if "\0" in text:
        raise ValueError
    text.encode()  # raises UnicodeEncodeError if a surrogate stands alone
    return text


def _bytea(value: Any) -> str:
    data = value.encode() if isinstance(value, str) else value
    if not isinstance(data, bytes):
        raise ValueError
    return f"\\x{data.hex()}"


def _json(value: Any) -> str:
    """The value as JSON text. Numbers stay exact."""
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case str():
            return json.dumps(_text(value), ensure_ascii=False)
        case int():
            return str(value)
        case float():
            if not math.isfinite(value):
                raise ValueError
            return repr(value)
        case Decimal():
            return str(_checked(value))
        case Mapping():
            return "{" + ", ".join([f"{_json_key(key)}: {_json(part)}" for key, part in value.items()]) + "}"
        case list() | tuple():
            return "[" + ", ".join([_json(part) for part in value]) + "]"
        case datetime() | date():
            return f'"{value.isoformat()}"'
        case UUID():
            return f'"{value}"'
    raise ValueError


def _json_key(key: Any) -> str:
    if not isinstance(key, str):
        raise ValueError
    return _json(key)


def _uuid(value: Any) -> str:
    match value:
        case UUID():
            return str(value)
        case bytes():
            return str(UUID(bytes=value))
        case str():
            return str(UUID(value))
    raise ValueError


def _time(value: Any) -> datetime:
    """A time from ISO 8601, or from seconds since 1970."""
    if isinstance(value, str):
        return datetime.fromisoformat(value)
    if isinstance(value, datetime):
        return value
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        raise ValueError
    return datetime.fromtimestamp(float(value), UTC)


def _timestamptz(value: Any) -> str:
    time = _time(value)
    if time.tzinfo is None:
        raise ValueError
    return timestamptz_text(time)


def timestamptz_text(time: datetime) -> str:
    """A time as PostgreSQL prints it in UTC."""
    return f"{_timestamp_text(time.astimezone(UTC))}+00"


def _timestamp(value: Any) -> str:
    time = _time(value)
    return _timestamp_text(time.astimezone(UTC) if time.tzinfo is not None else time)


def _timestamp_text(time: datetime) -> str:
    text = time.replace(tzinfo=None).isoformat(" ")
    return text.rstrip("0") if time.microsecond else text


def _date(value: Any) -> str:
    if isinstance(value, datetime):
        value = value.date()
    return (value if isinstance(value, date) else date.fromisoformat(value)).isoformat()


_CONVERSIONS: Final[Mapping[str, Callable[[Any], str]]] = {
    "bool": _boolean,
    **{name: _integer(bits) for name, bits in _INTEGERS.items()},
    "float4": _real,
    "float8": _float,
    "numeric": _numeric,
    "text": _text,
    "bytea": _bytea,
    "json": _json,
    "jsonb": _json,
    "uuid": _uuid,
    "timestamptz": _timestamptz,
    "timestamp": _timestamp,
    "date": _date,
}
"""By PostgreSQL type: converts a field to the type's text. Raises ValueError or TypeError if it is not of the type."""
