"""Rows whose unchanged TOASTed values PostgreSQL did not send: their documents have them."""

from __future__ import annotations

from collections.abc import Sequence

from tailrace.change import Relation
from tailrace.log.json_columns import quote_text
from tailrace.sinks.documents.raw_json import members
from tailrace.sinks.opensearch.index_name import field_name


def complete_document(sent: str, stored: str, relation: Relation, unsent: Sequence[int]) -> str:
    """Return a row's whole document.

    Args:
        sent: What PostgreSQL sent, as JSON.
        stored: The document before.
        relation: The table.
        unsent: The indexes of the columns that PostgreSQL did not send.
    """
    own, before = members(sent), members(stored)
    pairs = []
    for index, column in enumerate(relation.columns):
        name = field_name(column.name)
        value = (before if index in unsent else own).get(name)
        if value is not None:
            pairs.append(f"{quote_text(name)}:{value}")
    return "{" + ",".join(pairs) + "}"
