"""Keys, values and rows as documents have them."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest

from tailrace.change import Column, Type
from tailrace.sinks.documents import raw_json
from tailrace.sinks.documents.document_text import document_text
from tailrace.sinks.documents.document_value import document_values
from tailrace.sinks.documents.key_text import key_texts

_TEXT = Type(25, "pg_catalog", "text")
_INT = Type(23, "pg_catalog", "int4")


def _array(element: Type) -> Type:
    return Type(1, "pg_catalog", f"_{element.name}", element=element)


def test_different_keys_have_different_texts() -> None:
    pairs = [("a", "b"), ("a,b", ""), ("", "a,b"), ("a\\", "b"), ("a", "\\,b"), ("a\\,", "b"), ("a,", "b"), (",", ",")]
    first, second = (pa.array([pair[index] for pair in pairs]) for index in (0, 1))
    assert len(set(key_texts([first, second]).to_pylist())) == len(pairs)
    assert key_texts([first]).to_pylist() == first.to_pylist()


@pytest.mark.parametrize(
    ("type_", "text", "value"),
    [
        (_INT, "-2147483648", "-2147483648"),
        (Type(16, "pg_catalog", "bool"), "t", "true"),
        (Type(701, "pg_catalog", "float8"), "NaN", '"NaN"'),
        (Type(1700, "pg_catalog", "numeric"), "0.10", '"0.10"'),
        (Type(1184, "pg_catalog", "timestamptz"), "2024-02-29 12:00:00.5+00", '"2024-02-29T12:00:00.5Z"'),
        (Type(1114, "pg_catalog", "timestamp"), "0044-03-15 00:00:00 BC", '"0044-03-15 00:00:00 BC"'),
        (Type(3802, "pg_catalog", "jsonb"), '{"a": 1.10}', '{"a": 1.10}'),
        (_array(_INT), "{1,NULL,3}", "[1,null,3]"),
        (_array(_INT), "{}", "[]"),
        (_array(_INT), "[0:1]={1,2}", '"[0:1]={1,2}"'),
        (_array(_INT), "{{1},{2}}", '"{{1},{2}}"'),
        (_array(_TEXT), '{a,"b c","q\\"q","NULL",NULL,""}', '["a","b c","q\\"q","NULL",null,""]'),
        (_array(_array(_TEXT)), "{}", "[]"),
    ],
)
def test_a_value_and_back(type_: Type, text: str, value: str) -> None:
    column = Column("c", type_)
    assert document_values(pa.array([text, None]), column).to_pylist() == [value.encode(), b"null"]
    assert document_text(value, column) == text
    assert document_text("null", column) is None


def test_json_is_taken_apart_without_changing_it() -> None:
    text = ' { "a" : 1.10 , "b\\u0041":[1, {"x": "}"}] ,"": null, "n": ' + "9" * 5000 + " } "
    found = raw_json.members(text)
    assert found == {"a": "1.10", "bA": '[1, {"x": "}"}]', "": "null", "n": "9" * 5000}
    assert list(raw_json.items(found["bA"])) == ["1", '{"x": "}"}']
    assert (raw_json.members("{}"), list(raw_json.items(" [ ] "))) == ({}, [])
    assert json.loads(found["bA"]) == [1, {"x": "}"}]
