"""How large a Parquet file gets when it is read: the sizes that its page headers declare. Pure.

Arrow unpacks a page to the size in the page's own header, which the footer need not agree with, and a few bytes can
declare billions. So these headers are read before Arrow reads the pages. Footer and headers are structs in Thrift's
compact protocol, which is read here: Arrow ends the process when it is asked about columns of a forged footer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

Struct = Mapping[int, Any]
"""Values by the field's number: integers, bytes, lists and structs. Others are left out."""

_MOST_DEPTH: Final = 12

# Numbers of fields in parquet.thrift.
_ROWS, _ROW_GROUPS = 3, 4
_COLUMNS: Final = 1
_COLUMN_METADATA: Final = 3
_PATH, _VALUES, _COMPRESSED_SIZE, _DATA_PAGE, _DICTIONARY_PAGE = 3, 5, 7, 9, 11
_KIND, _UNPACKED, _PACKED = 1, 2, 3
_IS_DICTIONARY: Final = 2


@dataclass(frozen=True, slots=True)
class ColumnSize:
    """What the pages of one column unpack to, in bytes."""

    dictionary: int = 0
    values: int = 0


@dataclass(frozen=True, slots=True)
class FileSize:
    rows: int
    columns: Mapping[str, ColumnSize]


def file_size(data: bytes, footer: int, end: int) -> FileSize:
    """Return the number of rows, and what each column unpacks to.

    Args:
        data: The file.
        footer: Where its footer begins.
        end: Where its pages end.

    Raises ValueError if the pages are not where the footer says.
    """
    try:
        metadata, _ = _struct(data, footer, 0)
        found: dict[str, ColumnSize] = {}
        for group in metadata[_ROW_GROUPS]:
            for column in (chunk[_COLUMN_METADATA] for chunk in group[_COLUMNS]):
                name = ".".join(part.decode() for part in column[_PATH])
                before, size = found.get(name, ColumnSize()), _column_size(data, column, end)
                found[name] = ColumnSize(before.dictionary + size.dictionary, before.values + size.values)
        return FileSize(int(metadata[_ROWS]), found)
    except (IndexError, KeyError, TypeError, AttributeError):
        raise ValueError("its footer or a page's header is damaged") from None


def _column_size(data: bytes, column: Struct, end: int) -> ColumnSize:
    # Without rows a column may have no pages, or a dictionary alone.
    at = min(filter(None, (column[_DATA_PAGE], column.get(_DICTIONARY_PAGE))), default=0)
    stop = at + column[_COMPRESSED_SIZE]
    if not 0 <= at <= stop <= end or (at == 0 and column[_VALUES]):
        raise ValueError("a column is outside the file")
    dictionary, values = 0, 0
    while at < stop:
        header, at = _struct(data, at, 0)
        if header[_UNPACKED] < 0 or header[_PACKED] < 0:
            raise ValueError("a page has no size")
        at += header[_PACKED]
        if header[_KIND] == _IS_DICTIONARY:
            dictionary += header[_UNPACKED]
        else:
            values += header[_UNPACKED]
    if at != stop:
        raise ValueError("a page is larger than its column")
    return ColumnSize(dictionary, values)


def _struct(data: bytes, at: int, depth: int) -> tuple[Struct, int]:
    """Read a struct. Returns it, and where it ends."""
    if depth > _MOST_DEPTH:
        raise ValueError("it is nested too deeply")
    found: dict[int, Any] = {}
    number = 0
    while head := data[at]:
        at += 1
        if head >> 4:
            number += head >> 4
        else:
            number, at = _integer(data, at)
        kind = head & 0x0F
        if kind > 2:  # 1 and 2 are a boolean's value
            found[number], at = _value(data, at, kind, depth)
    return found, at + 1


def _value(data: bytes, at: int, kind: int, depth: int) -> tuple[Any, int]:
    match kind:
        case 5 | 6 | 4:
            return _integer(data, at)
        case 8:
            length, at = _natural(data, at)
            if at + length > len(data):
                raise IndexError
            return data[at : at + length], at + length
        case 12:
            return _struct(data, at, depth + 1)
        case 9 | 10:
            return _list(data, at, depth)
        case 1 | 2 | 3:  # in a list, a boolean has a byte of its own
            return None, at + 1
        case 7:
            return None, at + 8
    raise ValueError("it has a field of an unknown type")


def _list(data: bytes, at: int, depth: int) -> tuple[Sequence[Any], int]:
    head, at = data[at], at + 1
    count = head >> 4
    if count == 15:
        count, at = _natural(data, at)
    if count > len(data) - at:
        raise IndexError
    found = []
    for _ in range(count):
        value, at = _value(data, at, head & 0x0F, depth + 1)
        found.append(value)
    return found, at


def _natural(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while (byte := data[at]) >= 0x80:
        value |= (byte & 0x7F) << shift
        shift += 7
        at += 1
        if shift > 63:
            raise ValueError("it has a number that is too large")
    return value | byte << shift, at + 1


def _integer(data: bytes, at: int) -> tuple[int, int]:
    value, at = _natural(data, at)
    return (value >> 1) ^ -(value & 1), at
