"""Random values of PostgreSQL's types as SQL expressions: ordinary ones, and those that break readers."""

from __future__ import annotations

import json
import random
import string
import uuid
from base64 import b64encode
from collections.abc import Callable

Random = random.Random
Make = Callable[[Random], str]

DECLARATIONS = """
CREATE TYPE mood AS ENUM ('sad', 'ok', 'it''s "fine", really');
CREATE DOMAIN short AS varchar(40);
CREATE DOMAIN price AS numeric(10, 2) CHECK (VALUE >= -1000000);
CREATE DOMAIN net_price AS price;
CREATE TYPE spot AS (x int, label text);
"""

_LETTERS = string.ascii_letters + " \t\n\r\\\"',{}()%äß€𝄞\x01\x0b\u0301"


def text(rng: Random, longest: int = 30) -> str:
    return "".join(rng.choices(_LETTERS, k=rng.randint(0, longest)))


def bulky(rng: Random) -> str:
    """Too large for a page and hard to compress, so that it is TOASTed."""
    return f"é{b64encode(rng.randbytes(rng.randint(1900, 6700))).decode()}é"


def _date(rng: Random) -> str:
    special = ["infinity", "-infinity", "0044-03-15 BC", "4713-01-01 BC", "1582-10-10", "5874897-12-31", "0001-01-01"]
    day = f"{rng.randint(1, 12999):04d}-{rng.randint(1, 12):02d}-{rng.randint(1, 28):02d}"
    return rng.choice(special) if rng.random() < 0.3 else day


def _clock(rng: Random) -> str:
    clock = f"{rng.randint(0, 23):02d}:{rng.randint(0, 59):02d}:{rng.randint(0, 59):02d}"
    return rng.choice([clock, f"{clock}.{rng.randint(0, 999_999):06d}", "24:00:00", "00:00:00"])


def _timestamp(rng: Random) -> str:
    special = ["infinity", "-infinity", "294276-12-31 23:59:59.999999", "4713-01-02 00:00:00 BC", "1500-02-28 12:00:00"]
    moment = f"{rng.randint(1, 9999):04d}-{rng.randint(1, 12):02d}-{rng.randint(1, 28):02d} {_clock(rng)}"
    return rng.choice(special) if rng.random() < 0.3 else moment


def _json(rng: Random, depth: int = 2) -> object:
    if depth and rng.random() < 0.5:
        return {text(rng, 5).replace("\0", ""): _json(rng, depth - 1) for _ in range(rng.randint(0, 3))}
    return rng.choice([None, True, text(rng, 10), rng.randint(-(2**70), 2**70), [1, "2", None], "\u2028"])


def _number(rng: Random) -> str:
    digits = "".join(rng.choices(string.digits, k=rng.randint(1, 60)))
    return rng.choice(["NaN", "Infinity", "-Infinity", "0", "-0.00", "1e-20", digits, f"-{digits}.{digits[:30]}"])


def _float(rng: Random) -> str:
    exact = repr(rng.uniform(-1e6, 1e6))
    return rng.choice(["NaN", "Infinity", "-Infinity", "-0", "1e-40", "3.4028235e38", "0.1", exact])


def _cents(rng: Random) -> str:
    return f"{rng.randint(-99_999_999, 99_999_999) / 100:.2f}"


def one_of(*values: str) -> Make:
    return lambda rng: rng.choice(values)


def _between(low: int, high: int) -> Make:
    return lambda rng: str(rng.choice([low, high, 0, rng.randint(low, high), rng.randint(-9, 9)]))


TYPES: dict[str, Make] = {
    "int2": _between(-(2**15), 2**15 - 1),
    "int4": _between(-(2**31), 2**31 - 1),
    "int8": _between(-(2**63), 2**63 - 1),
    "oid": lambda rng: str(rng.choice([0, 2**32 - 1, rng.randint(0, 2**32 - 1)])),
    "float4": _float,
    "float8": lambda rng: rng.choice([_float(rng), "5e-324", "1.7976931348623157e308", repr(rng.random())]),
    "numeric": _number,
    "numeric(12,3)": lambda rng: rng.choice(["NaN", "999999999.999", "-0.001", str(rng.randint(-(10**8), 10**8))]),
    "numeric(38,0)": lambda rng: rng.choice(["9" * 38, "-" + "9" * 38, "NaN", "0"]),
    "numeric(60,5)": lambda rng: rng.choice(["9" * 55 + ".99999", "-1.5", "NaN"]),
    "money": lambda rng: rng.choice(["-92233720368547758.08", "92233720368547758.07", "0", _cents(rng)]),
    "bool": one_of("t", "f"),
    "text": text,
    "varchar(20)": lambda rng: text(rng, 20),
    "char(5)": lambda rng: text(rng, 5),
    '"char"': lambda rng: rng.choice(string.ascii_letters),
    "name": lambda rng: text(rng, 12),
    "bytea": lambda rng: "\\x" + rng.randbytes(rng.randint(0, 40)).hex(),
    "date": _date,
    "timestamp": _timestamp,
    "timestamptz": _timestamp,
    "timestamp(3)": lambda rng: f"2024-02-{rng.randint(1, 29):02d} {_clock(rng)}",
    "time": _clock,
    "timetz": lambda rng: _clock(rng) + rng.choice(["+00", "-11", "+05:30"]),
    "interval": lambda rng: rng.choice(
        [
            *("0", "-1 day", "1 year 2 mons -3 days 04:05:06.789", "178000000 years", "-00:00:00.000001", "10 mons"),
            f"{rng.randint(-99, 99)} mons {rng.randint(-99, 99)} days {rng.randint(-9999, 9999)} seconds",
        ]
    ),
    "uuid": lambda rng: str(uuid.UUID(int=rng.getrandbits(128))),
    "json": lambda rng: json.dumps(_json(rng), indent=rng.choice([None, 1])),
    "jsonb": lambda rng: json.dumps(_json(rng)).replace("\\u0000", ""),
    "bit(7)": lambda rng: f"{rng.getrandbits(7):07b}",
    "varbit": lambda rng: rng.choice(["", "0", "0001", "111000"]),
    "inet": one_of("10.0.0.1/8", "::1", "192.168.1.1", "fe80::1/64"),
    "cidr": one_of("10.0.0.0/8", "::/0"),
    "macaddr8": one_of("08:00:2b:01:02:03:04:05"),
    "point": one_of("(1,2)", "(Infinity,-0)", "(NaN,1e-300)"),
    "box": one_of("(2,2),(1,1)"),
    "int4[]": one_of("{}", "{1,NULL,3}", "{{1,2},{3,4}}", "[0:2]={1,2,3}", "[-1:0][2:3]={{1,2},{3,4}}"),
    "text[]": one_of("{}", '{NULL,"NULL","","a,b","q\\"q","b\\\\b"}', '{{a},{" "}}'),
    "int4range": one_of("empty", "[1,5)", "(,)", "[3,)"),
    "tstzrange": one_of("empty", '["2020-01-01 00:00:00+00","infinity")', "(,)"),
    "int4multirange": one_of("{}", "{[1,3),[5,9)}"),
    "tsvector": one_of("", "'a':1A 'it''s':2"),
    "pg_lsn": one_of("0/0", "16/B374D848"),
    "xid8": one_of("0", "18446744073709551615"),
    "mood": one_of("sad", "ok", 'it\'s "fine", really'),
    "short": lambda rng: text(rng, 40),
    "net_price": lambda rng: rng.choice(["NaN", "99999999.99", _cents(rng)]),
    "spot": one_of("(1,a)", "(,)", '(2,"q""x, y")'),
    "spot[]": one_of("{}", '{"(1,\\"a b\\")",NULL}'),
}
"""Type in SQL → a function for a random value. `DECLARATIONS` creates the types that PostgreSQL lacks."""


def value(rng: Random, type_: str) -> str | None:
    return None if rng.random() < 0.1 else TYPES[type_](rng).replace("\0", "")
