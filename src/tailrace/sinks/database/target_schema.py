"""The schemas that a sink's tables go to, as far as they are known before it runs."""

from __future__ import annotations

from collections.abc import Collection

from tailrace.delivery.sink_settings import SinkContext
from tailrace.delivery.transforms import Shaping
from tailrace.log import published_table
from tailrace.settings.pattern import TablePattern
from tailrace.store import Store


def target_schemas(context: SinkContext) -> Collection[str]:
    """Return the schemas of the tables that capture publishes; before it has run, those that patterns name."""
    store = context.store
    published = published_table.load(Store.open(store.url, store.options)) if store.url else ()
    shaping = Shaping(context.common)
    if published:
        shaped = [shaping.load(relation) for relation in published]
        return {found[1][0] for found in shaped if found is not None}
    patterns = [TablePattern.parse(text) for text in (*context.common.tables, *context.source_tables)]
    schemas = {name for pattern in patterns if (name := pattern.schema_name) is not None}
    routed = [context.common.route.format(schema=schema, table="table", database="") for schema in schemas]
    return {name.rpartition(".")[0] or "public" for name in routed}
