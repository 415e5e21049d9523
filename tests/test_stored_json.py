"""JSON that others wrote: it is what a record declares, or it is refused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Literal

import pytest

from tailrace import stored_json
from tailrace.change import Lsn


@dataclass(frozen=True)
class Leaf:
    name: str
    parent: Leaf | None = None


@dataclass(frozen=True)
class Record:
    number: int = 1
    share: float = 0.5
    is_open: bool = False
    lsn: Lsn | None = None
    kind: Literal["a", "b"] = "a"
    at: datetime = datetime(2026, 1, 1, tzinfo=UTC)
    names: tuple[str, ...] = ("x",)
    pair: tuple[str, int] = ("x", 1)
    leaves: Sequence[Leaf] = (Leaf("child", Leaf("root")),)
    lsns: Mapping[int, Lsn] = field(default_factory=lambda: {1: Lsn(2)})
    anything: Any = None


@pytest.mark.parametrize(
    "text", [b"", b"{", b"[1,", b"[NaN]", b"[-Infinity]", b"\xff", b"9" * 5000, b"[" * 200_000, b'{"a":' * 200_000]
)
def test_what_is_not_json_is_a_value_error(text: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 (its text differs)
        stored_json.parse(text)


def test_fields_have_their_declared_types() -> None:
    assert stored_json.typed(Record()) == Record()
    good: dict[str, Any] = {"share": 1, "lsn": Lsn(7), "kind": "b", "names": (), "leaves": [], "anything": object()}
    for name, value in good.items():
        stored_json.typed(replace(Record(), **{name: value}))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("number", "1"),
        ("number", True),
        ("number", 1.5),
        ("share", "x"),
        ("share", True),
        ("is_open", 1),
        ("is_open", None),
        ("lsn", "0/7"),
        ("kind", "c"),
        ("kind", []),
        ("at", "2026-01-01"),
        ("at", datetime(2026, 1, 1)),
        ("names", ["x"]),
        ("names", ("x", 1)),
        ("pair", ("x",)),
        ("pair", (1, "x")),
        ("leaves", "xy"),
        ("leaves", ({"name": "x"},)),
        ("leaves", (Leaf("child", Leaf(5)),)),  # type: ignore[arg-type]
        ("lsns", {"1": Lsn(2)}),
        ("lsns", {1: None}),
    ],
)
def test_another_type_is_refused(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=name):
        stored_json.typed(replace(Record(), **{name: value}))
