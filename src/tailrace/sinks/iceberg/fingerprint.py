"""128-bit fingerprints of keys or whole rows: long enough that two different ones never collide in practice.

They locate a file's rows without reading the file again. The hash is SipHash-2-4 with a secret key, so that nobody who
writes rows can choose two that collide.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Fingerprints = npt.NDArray[np.uint64]
"""Two 64-bit words for each row."""
HashKey = tuple[int, int]
"""The secret: two random 64-bit words, for as long as the sink is open."""


def fingerprints(columns: Sequence[pa.Array], count: int, key: HashKey) -> Fingerprints:
    """A fingerprint for each row. Rows have equal ones if all values are equal bit by bit; NULL equals NULL."""
    from tailrace.sinks.iceberg import kernel  # imported late: it loads the compiler

    states = np.empty((count, 5), np.uint64)
    kernel.begin(states, np.array(key, np.uint64))
    for column in columns:
        for flat in _flat(column):
            valid = flat.is_valid().to_numpy(zero_copy_only=False)
            if pa.types.is_large_binary(flat.type):
                offsets, data = _bytes(flat)
                kernel.mix_bytes(states, offsets, data, valid)
            else:
                kernel.mix_words(states, flat.fill_null(0).to_numpy(), valid)
    prints = np.empty((count, 2), np.uint64)
    kernel.finish(states, prints)
    return prints


def _flat(array: pa.Array) -> Iterator[pa.Array]:
    """The array's values as 64-bit integers or as bytes."""
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    kind = array.type
    if pa.types.is_struct(kind):
        yield array.is_valid().cast(pa.int64())
        for index in range(kind.num_fields):
            yield from _flat(pc.struct_field(array, index))
    elif pa.types.is_map(kind):
        # Slow, but few rows have a map.
        yield pa.array([None if v is None else json.dumps(sorted(v)) for v in array.to_pylist()]).cast(
            pa.large_binary()
        )
    elif pa.types.is_floating(kind):
        integer = {32: pa.int32(), 64: pa.int64()}[kind.bit_width]
        yield array.view(integer).cast(pa.int64())
    elif pa.types.is_boolean(kind) or pa.types.is_integer(kind):
        yield array.cast(pa.int64())
    elif pa.types.is_date32(kind):
        yield array.view(pa.int32()).cast(pa.int64())
    elif pa.types.is_timestamp(kind):
        yield array.view(pa.int64())
    elif pa.types.is_decimal(kind):
        yield array.cast(pa.string()).cast(pa.large_binary())
    elif pa.types.is_fixed_size_binary(kind):
        yield array.cast(pa.binary()).cast(pa.large_binary())
    else:
        yield array.cast(pa.large_binary())


def _bytes(array: pa.Array) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint8]]:
    _, offsets, data = array.buffers()
    bounds = np.frombuffer(offsets, np.int64)[array.offset : array.offset + len(array) + 1].copy()
    return bounds, np.frombuffer(data if data is not None else b"", np.uint8)
