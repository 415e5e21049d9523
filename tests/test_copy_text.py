"""Text for COPY decodes to the values that it was made from."""

from __future__ import annotations

import random

import pyarrow as pa
from tests.pgoutput import build

from tailrace.pgoutput.decoder import decode_copy
from tailrace.postgres import copy_text


def test_lines_decode_to_the_same_values() -> None:
    chosen = random.Random(5)
    alphabet = copy_text.ESCAPED + "N.bntx,é\x01"
    columns = [[_value(chosen, alphabet) for _ in range(500)] for _ in range(3)]
    arrays = [pa.array(column, pa.string()) for column in columns]
    data = b"".join(copy_text.lines(arrays, 500))
    assert decode_copy(build.relation("text", "text", "text"), data).batch.columns == arrays
    fields = zip(*columns, strict=True)
    escaped = [[b"\\N" if v is None else copy_text.escape(v.encode()) for v in row] for row in fields]
    assert data == b"".join(b"\t".join(row) + b"\n" for row in escaped)


def test_the_delimiter_is_escaped() -> None:
    assert copy_text.escape(b"a|b\tc\\", b"|") == b"a\\|b\\tc\\\\"


def _value(chosen: random.Random, alphabet: str) -> str | None:
    if chosen.random() < 0.2:
        return chosen.choice([None, "", "\\N", "\\."])
    return "".join(chosen.choices(alphabet, k=chosen.randrange(9)))
