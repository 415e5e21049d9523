"""Keys are found by number, and no two are taken for each other."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.log import keys
from tailrace.log.keys import Keys, row_hashes

TEXTS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=5)


@settings(derandomize=True, deadline=None, max_examples=200)
@given(st.sets(TEXTS, max_size=50), st.lists(TEXTS, max_size=50), st.booleans())
def test_each_key_is_found_where_it_is(known: set[str], asked: list[str], is_ambiguous: bool) -> None:
    texts = sorted(known)
    index = Keys(pa.array(texts, pa.string()))
    index._is_ambiguous = is_ambiguous
    numbers = {text: number for number, text in enumerate(texts)}
    asked = [*asked, *texts]
    assert index.find(pa.array(asked, pa.string())).tolist() == [numbers.get(text, -1) for text in asked]


def test_keys_whose_hashes_are_equal_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keys, "row_hashes", lambda columns: np.zeros(len(columns[0]), np.uint64))
    assert Keys(pa.array(["a", "b"])).find(pa.array(["b", "c", "a"])).tolist() == [1, -1, 0]
    assert Keys(pa.array(["a"])).find(pa.array(["b", "a"])).tolist() == [-1, 0]


def test_rows_have_their_own_numbers_wherever_they_stand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keys, "_BLOCK_ROWS", 7)
    rows = [(a, b) for a in (None, "", "1", "11", "N") for b in (None, "", "1", "11", "N")] * 2
    columns = [pa.array(column, pa.string()) for column in zip(*rows, strict=True)]
    hashes = row_hashes(columns).tolist()
    assert len(set(hashes)) == len(set(rows)) == 25
    assert hashes[:25] == hashes[25:]
    assert row_hashes([c[3:] for c in columns]).tolist() == hashes[3:]
