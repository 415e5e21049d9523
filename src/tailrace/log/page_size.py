"""How large a Parquet file gets when it is read: the sizes that its page headers declare. Pure.

Arrow unpacks a page to the size in the page's own header, which the footer need not agree with, and a few bytes can
declare billions. So these headers are read before Arrow reads the pages.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import pyarrow.parquet as pq

# Types of Thrift's compact protocol.
_TRUE, _FALSE, _BYTE, _I16, _I32, _I64, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT = range(1, 13)
_NUMBERS: Final = {_I16, _I32, _I64}
_MOST_DEPTH: Final = 8

# Numbers of the fields of a page's header.
_KIND, _UNPACKED, _PACKED = 1, 2, 3
_DICTIONARY_PAGE: Final = 2


@dataclass(frozen=True, slots=True)
class ColumnSize:
    """What the pages of one column unpack to, in bytes."""

    dictionary: int
    values: int


def column_sizes(data: bytes | memoryview, metadata: pq.FileMetaData, end: int) -> dict[str, ColumnSize]:
    """Return the sizes of all columns.

    Args:
        data: The file.
        metadata: Its footer.
        end: Where its pages end.

    Raises ValueError if the pages are not where the footer says.
    """
    found: dict[str, ColumnSize] = {}
    for group in (metadata.row_group(number) for number in range(metadata.num_row_groups)):
        for column in (group.column(number) for number in range(group.num_columns)):
            dictionary, values = 0, 0
            # Without rows a column may have no pages, or a dictionary alone.
            at = min(filter(None, (column.data_page_offset, column.dictionary_page_offset)), default=0)
            stop = at + column.total_compressed_size
            if not 0 <= at <= stop <= end or (at == 0 and column.num_values):
                raise ValueError("a column is outside the file")
            while at < stop:
                header = _Header(data, at)
                at = header.end + header.packed
                if header.is_dictionary:
                    dictionary += header.unpacked
                else:
                    values += header.unpacked
            if at != stop:
                raise ValueError("a page is larger than its column")
            before = found.get(column.path_in_schema, ColumnSize(0, 0))
            found[column.path_in_schema] = ColumnSize(before.dictionary + dictionary, before.values + values)
    return found


class _Header:
    """The header of a page, in Thrift's compact protocol."""

    __slots__ = ("_data", "end", "is_dictionary", "packed", "unpacked")

    def __init__(self, data: bytes | memoryview, at: int) -> None:
        self._data = data
        self.end = at
        try:
            fields = self._fields(0)
        except IndexError:
            raise ValueError("a page's header ends with the file") from None
        self.is_dictionary = fields.get(_KIND) == _DICTIONARY_PAGE
        self.unpacked, self.packed = fields.get(_UNPACKED, -1), fields.get(_PACKED, -1)
        if self.unpacked < 0 or self.packed < 0:
            raise ValueError("a page has no size")

    def _fields(self, depth: int) -> dict[int, int]:
        """The numbers among a struct's fields, by the field's number; all others are skipped."""
        if depth > _MOST_DEPTH:
            raise ValueError("a page's header is nested too deeply")
        found: dict[int, int] = {}
        number = 0
        while head := self._byte():
            kind = head & 0x0F
            number = number + (head >> 4) if head >> 4 else self._zigzag()
            if kind in _NUMBERS:
                found[number] = self._zigzag()
            elif kind not in (_TRUE, _FALSE):
                self._skip(kind, depth)
        return found

    def _skip(self, kind: int, depth: int) -> None:
        match kind:
            case 3 | 1 | 2:  # a boolean in a list has a byte of its own
                self._byte()
            case 4 | 5 | 6:
                self._zigzag()
            case 7:
                self.end += 8
            case 8:
                length = self._varint()
                self.end += length
            case 9 | 10:
                head = self._byte()
                count = head >> 4 if head >> 4 < 15 else self._varint()
                for _ in range(min(count, len(self._data))):
                    self._skip(head & 0x0F, depth + 1)
            case 12:
                self._fields(depth + 1)
            case _:
                raise ValueError("a page's header has a field of an unknown type")

    def _byte(self) -> int:
        value = self._data[self.end]
        self.end += 1
        return value

    def _varint(self) -> int:
        value = shift = 0
        while True:
            byte = self._byte()
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7
            if shift > 63:
                raise ValueError("a page's header has a number that is too large")

    def _zigzag(self) -> int:
        value = self._varint()
        return (value >> 1) ^ -(value & 1)
