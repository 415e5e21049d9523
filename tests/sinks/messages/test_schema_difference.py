"""The words about two schemas that do not fit together."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tailrace.sinks.messages.schema_difference import differences


def _record(*fields: tuple[str, Any]) -> dict[str, Any]:
    return {"type": "record", "name": "shop.Row", "fields": [{"name": name, "type": type_} for name, type_ in fields]}


def _decimal(scale: int) -> dict[str, Any]:
    return {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": scale}


def test_fields_of_records_in_records() -> None:
    old = _record(("after", ["null", _record(("total", _decimal(2)), ("note", "string"))]), ("op", "string"))
    new = _record(("after", ["null", _record(("total", _decimal(3)), ("at", "long"))]), ("op", "string"))
    assert differences(json.dumps(old), json.dumps(new)) == [
        "after.total was decimal(10,2) and is decimal(10,3)",
        "after.note is gone",
        "after.at is new",
    ]


@pytest.mark.parametrize("other", ['syntax = "proto3";', "[]", "null", '{"fields": 1}', '{"fields": [{}]}'])
def test_a_schema_of_another_kind(other: str) -> None:
    found = differences(other, json.dumps(_record(("id", "long"))))
    assert found in ([], ["id is new"])
