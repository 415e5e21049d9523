"""Names that no other column has."""

from __future__ import annotations

from tests.pgoutput import build

from tailrace.change import Column, Relation
from tailrace.column_name import numbered_name, unused_name, with_suffix


def _relation(*names: str) -> Relation:
    return build.relation(*(Column(name, build.type_("text")) for name in names))


def test_underscores_are_added_until_the_name_is_free() -> None:
    assert unused_name("_lsn", _relation("id")) == "_lsn"
    assert unused_name("_lsn", _relation("_lsn", "__lsn")) == "___lsn"
    assert unused_name("_lsn", _relation("_LSN")) == "__lsn"
    assert unused_name("_lsn", _relation("_LSN"), ignore_case=False) == "_lsn"


def test_the_first_free_number_is_added() -> None:
    assert numbered_name("a", {"a"}) == "a~1"
    assert numbered_name("a", {"a~1", "a~3"}) == "a~2"
    taken = {"é" * 30 + f"~{number}" for number in range(1, 10)}
    assert numbered_name("é" * 31, taken, fits_postgres=True) == "é" * 30 + "~10"


def test_a_suffix_fits_in_a_name_of_postgres() -> None:
    assert with_suffix("x" * 63, "~16384") == "x" * 57 + "~16384"
    assert with_suffix("é" * 31, "~1") == "é" * 30 + "~1"
