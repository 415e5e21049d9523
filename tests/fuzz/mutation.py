"""Random damage to valid bytes. `FUZZ` is the number of rounds for each target: few in CI, more in `make chaos`."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator

ROUNDS = int(os.environ.get("FUZZ", "150"))
_EDGES = (0, 1, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 0x7FFF_FFFF, 0x8000_0000, 0xFFFF_FFFF)


def mutations(seed: int, data: bytes, rounds: int = ROUNDS) -> Iterator[bytes]:
    """Damaged copies, of which none equals the original. Each seed gives others."""
    rng = random.Random(seed)
    for _ in range(rounds):
        damaged = data
        while damaged == data:
            for _ in range(rng.choice((1, 1, 1, 2, 5))):
                damaged = _damage(rng, damaged)
        yield damaged


def _damage(rng: random.Random, data: bytes) -> bytes:
    at = rng.randrange(len(data) + 1)
    end = min(len(data), at + rng.choice((1, 2, 4, 8, 64)))
    match rng.randrange(7):
        case 0 if data:  # one bit
            at = rng.randrange(len(data))
            return data[:at] + bytes([data[at] ^ (1 << rng.randrange(8))]) + data[at + 1 :]
        case 1:
            return data[:at]
        case 2:
            return data[:at] + rng.randbytes(end - at) + data[end:]
        case 3:
            return data[:at] + rng.randbytes(rng.choice((1, 3, 100))) + data[at:]
        case 4:
            return data[:at] + data[end:]
        case 5:  # a number at the edge of its range
            width = rng.choice((1, 2, 4))
            value = rng.choice(_EDGES) & ((1 << 8 * width) - 1)
            return data[:at] + value.to_bytes(width, rng.choice(("big", "little"))) + data[at + width :]
        case _:  # a piece twice
            return data[:end] + data[at:end] + data[end:]
