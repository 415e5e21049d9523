"""Keys are found, and never confused with each other."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.state import key_index
from tailrace.state.key_index import KeyIndex, row_hashes

TEXTS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=5)


@settings(derandomize=True, deadline=None, max_examples=200)
@given(st.sets(TEXTS, max_size=50), st.lists(TEXTS, max_size=50), st.booleans())
def test_each_key_is_found(known: set[str], asked: list[str], is_ambiguous: bool) -> None:
    texts = sorted(known)
    index = KeyIndex(pa.array(texts, pa.string()))
    index._is_ambiguous = is_ambiguous
    numbers = {text: number for number, text in enumerate(texts)}
    asked = [*asked, *texts]
    assert index.find(pa.array(asked, pa.string())).tolist() == [numbers.get(text, -1) for text in asked]


def test_keys_with_equal_hashes_are_distinguished(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_index, "row_hashes", lambda columns: np.zeros(len(columns[0]), np.uint64))
    assert KeyIndex(pa.array(["a", "b"])).find(pa.array(["b", "c", "a"])).tolist() == [1, -1, 0]
    assert KeyIndex(pa.array(["a"])).find(pa.array(["b", "a"])).tolist() == [-1, 0]


def test_row_hashes_do_not_depend_on_the_block(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_index, "_BLOCK_ROWS", 7)
    rows = [(a, b) for a in (None, "", "1", "11", "N") for b in (None, "", "1", "11", "N")] * 2
    columns = [pa.array(column, pa.string()) for column in zip(*rows, strict=True)]
    hashes = row_hashes(columns).tolist()
    assert len(set(hashes)) == len(set(rows)) == 25
    assert hashes[:25] == hashes[25:]
    assert row_hashes([c[3:] for c in columns]).tolist() == hashes[3:]
