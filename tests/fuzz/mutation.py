"""Random damage to valid bytes. `FUZZ` is the number of rounds for each target: few in CI, more in `make chaos`."""

from __future__ import annotations

import copy
import json
import os
import random
from collections.abc import Iterator
from typing import Any

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


_NESTED = "of an array that is nested too deeply to be read"
_ODD: tuple[Any, ...] = (
    *(None, True, -1, 0, 1.5, 10**30, float("nan"), "", "x", "0/0", "0/FFFFFFFFF", "2026-01-01T00:00:00"),
    *([], {}, [[]], ["x"], [1, 2, 3], {"x": 1}, "../../x", "x" * 100_000, "\0", _NESTED),
)


def json_mutations(seed: int, value: Any, rounds: int = ROUNDS) -> Iterator[Any]:
    """Copies of a JSON value in which some parts are of other types, are absent, or are there although unknown."""
    rng = random.Random(seed)
    for _ in range(rounds):
        damaged = copy.deepcopy(value)
        for _ in range(rng.choice((1, 1, 1, 2))):
            damaged = _replace_part(rng, damaged)
        yield damaged


def json_text(value: Any) -> bytes:
    return json.dumps(value).replace(json.dumps(_NESTED), "[" * 200_000 + "]" * 200_000).encode()


def _replace_part(rng: random.Random, value: Any) -> Any:
    if rng.random() < 0.2 or not isinstance(value, dict | list) or not value:
        return copy.deepcopy(rng.choice(_ODD))
    place = rng.choice(list(value) if isinstance(value, dict) else range(len(value)))
    match rng.randrange(8):
        case 0:
            del value[place]
        case 1 if isinstance(value, dict):
            value["unknown"] = copy.deepcopy(rng.choice(_ODD))
        case 1 if isinstance(value, list):
            value.append(copy.deepcopy(rng.choice(_ODD)))
        case _:
            value[place] = _replace_part(rng, value[place])
    return value
