"""Hypothesis strategies for the text of every type as PostgreSQL prints it, and for relations of random types."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy
from tests.pgoutput import build

from tailrace.change import UNCHANGED, Image, Relation

_INFINITE = ["infinity", "-infinity"]
_NOT_FINITE = ["NaN", "Infinity", "-Infinity"]


def _float(value: float | np.float32) -> str:
    return {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}.get(str(value), str(value))


def _scaled(precision: int, scale: int) -> SearchStrategy[str]:
    def write(value: int) -> str:
        digits = str(abs(value)).rjust(scale + 1, "0")
        point = f"{digits[: len(digits) - scale]}.{digits[len(digits) - scale :]}" if scale else digits
        return "-" * (value < 0) + point

    limit = 10**precision - 1
    return st.integers(-limit, limit).map(write) | st.sampled_from([write(limit), write(-limit), *_NOT_FINITE])


def _money(cents: int) -> str:
    return f"{'-' * (cents < 0)}${abs(cents) // 100:,}.{abs(cents) % 100:02}"


def _integers(bits: int) -> SearchStrategy[str]:
    low, high = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
    return (st.integers(low, high) | st.sampled_from([low, high])).map(str)


_fraction = st.just("") | st.integers(1, 999_999).map(lambda n: f".{n:06}".rstrip("0"))
_clock = st.builds(
    lambda h, m, s, f: f"{h:02}:{m:02}:{s:02}{f}", st.integers(0, 23), st.integers(0, 59), st.integers(0, 59), _fraction
)


def _day(last: int) -> SearchStrategy[tuple[str, str]]:
    years = st.integers(1, last).map(lambda y: (y, "")) | st.integers(1, 4713).map(lambda y: (y, " BC"))
    near = st.integers(1850, 2100).map(lambda y: (y, ""))
    return st.builds(
        lambda year, m, d: (f"{year[0]:04}-{m:02}-{d:02}", year[1]),
        years | near,
        st.integers(1, 12),
        st.integers(1, 28),
    )


def _timestamp(zone: str) -> SearchStrategy[str]:
    made = st.builds(lambda day, clock: f"{day[0]} {clock}{zone}{day[1]}", _day(294_276), _clock)
    edges = [f"294247-01-10 04:00:54.77580{n}{zone}" for n in (6, 7, 8)]
    return made | st.sampled_from([*_INFINITE, *edges, f"294276-12-31 23:59:59.999999{zone}"])


def _interval(months: int, days: int, microseconds: int) -> str:
    """In IntervalStyle postgres, which has a plus sign only after a negative field."""
    parts: list[str] = []
    years = abs(months) // 12 * (-1 if months < 0 else 1)
    negative = False
    for amount, unit in ((years, "year"), (months - years * 12, "mon"), (days, "day")):
        if amount:
            parts.append(f"{'+' if negative and amount > 0 else ''}{amount} {unit}{'' if amount == 1 else 's'}")
            negative = amount < 0
    if microseconds or not parts:
        seconds, fraction = divmod(abs(microseconds), 1_000_000)
        sign = "-" if microseconds < 0 else "+" if negative else ""
        clock = f"{sign}{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
        parts.append(clock + (f".{fraction:06}".rstrip("0") if fraction else ""))
    return " ".join(parts)


_int32 = st.integers(-(2**31), 2**31 - 1) | st.integers(-30, 30)
_int64 = st.integers(-(2**63), 2**63 - 1) | st.integers(-100_000_000, 100_000_000)
_string = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20)
_single = st.floats(width=32).map(np.float32).map(_float)

TEXTS: dict[tuple[str, int], SearchStrategy[str]] = {
    ("bool", -1): st.sampled_from("tf"),
    ("int2", -1): _integers(16),
    ("int4", -1): _integers(32),
    ("int8", -1): _integers(64),
    ("oid", -1): st.integers(0, 2**32 - 1).map(str),
    # Doubles too: text longer than PostgreSQL's reveals values that are rounded twice.
    ("float4", -1): _single | st.floats(-3.4e38, 3.4e38).map(_float),
    ("float8", -1): st.floats().map(_float),
    ("numeric", build.numeric(10, 2)): _scaled(10, 2),
    ("numeric", build.numeric(38, 0)): _scaled(38, 0),
    ("numeric", build.numeric(38, 38)): _scaled(38, 38),
    ("numeric", build.numeric(1, 0)): _scaled(1, 0),
    ("numeric", build.numeric(25, 7)): _scaled(25, 7),
    ("numeric", build.numeric(5, -2)): _scaled(7, 0),
    ("numeric", -1): _scaled(60, 20),
    ("money", -1): st.integers(-(2**63), 2**63 - 1).map(_money),
    ("text", -1): _string,
    ("varchar", 24): _string,
    ("uuid", -1): st.uuids().map(str),
    ("jsonb", -1): st.sampled_from(['{"a": 1.10}', "[]", "null"]),
    ("bytea", -1): st.binary(max_size=20).map(lambda b: "\\x" + b.hex()),
    ("date", -1): _day(5_874_897).map("".join) | st.sampled_from([*_INFINITE, "9999999-12-31"]),
    ("timestamp", -1): _timestamp(""),
    ("timestamptz", -1): _timestamp("+00"),
    ("time", -1): _clock | st.just("24:00:00"),
    ("timetz", -1): _clock.map(lambda clock: clock + "-08"),
    ("interval", -1): st.builds(_interval, _int32, _int32, _int64) | st.sampled_from(_INFINITE),
}


@st.composite
def tables(draw: st.DrawFn) -> tuple[Relation, list[Image]]:
    """A relation and rows of it, some with unchanged values."""
    kinds = draw(st.lists(st.sampled_from(list(TEXTS)), max_size=6))
    cells = [st.none() | st.just(UNCHANGED) | TEXTS[kind].map(str.encode) for kind in kinds]
    return build.relation(*kinds), draw(st.lists(st.tuples(*cells), max_size=12))
