"""Two tables never share a destination, and a table that is renamed, dropped or created again is followed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tailrace.errors import ConfigError, CorruptError, SinkError
from tailrace.log.published_table import PublishedOids
from tailrace.sinks.messages import destination_registry
from tailrace.sinks.messages.destination_registry import DestinationRegistry, LoadPublished, RegisteredTable
from tailrace.store import Store

EMPTY = DestinationRegistry("use another name")


SEEN_AT = 1000
LATER, EARLIER = 2000, 500


def _table(oid: int, schema: str, name: str, destination: str = "") -> RegisteredTable:
    return RegisteredTable(oid, (schema, name), (schema, name), destination or name, seen_at_us=SEEN_AT)


def _published(*oids: int, at: int = LATER) -> LoadPublished:
    return lambda: PublishedOids(frozenset(oids), at)


def _register(*tables: RegisteredTable, published: LoadPublished = PublishedOids) -> DestinationRegistry:
    registry = EMPTY
    for table in tables:
        registry = registry.register(table, published)
    return registry


def test_a_second_table_is_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"public\.orders and shop\.orders would both be published to orders"
    ) as caught:
        _register(_table(1, "public", "orders"), _table(2, "shop", "orders"))
    assert caught.value.hint == "use another name"


def test_two_published_tables_are_refused() -> None:
    with pytest.raises(ConfigError):
        _register(_table(1, "public", "orders"), _table(2, "shop", "orders"), published=_published(1, 2))


def test_a_table_that_capture_does_not_list_yet_is_retried() -> None:
    """The other one may have been dropped a moment ago."""
    for oids in ((1,), (3,)):
        with pytest.raises(SinkError):
            _register(
                _table(1, "public", "orders"), _table(2, "shop", "orders"), published=_published(*oids, at=EARLIER)
            )


def test_a_dropped_table_releases_its_destination() -> None:
    first, second = _table(1, "public", "orders"), _table(2, "shop", "orders")
    registry = _register(first, second, published=_published(2))
    assert registry.tables[2] == second
    assert not registry.unused([first]), "the destination is still in use"


def test_tables_that_had_changes_at_the_same_time_are_refused_even_if_both_are_gone() -> None:
    first, second = _table(1, "public", "orders"), _table(2, "shop", "orders")
    with pytest.raises(ConfigError):
        _register(first, second, first, published=_published(3))


def test_a_rewind_delivers_replaced_tables_again() -> None:
    first, second = _table(1, "public", "orders"), _table(2, "shop", "orders")
    registry = _register(first, second, published=_published(2)).rewound()
    assert registry.register(_table(1, "public", "orders"), _published(2)).tables.keys() == {1, 2}


def test_a_table_that_is_created_again() -> None:
    registry = _register(_table(1, "public", "orders"), _table(2, "public", "orders"))
    assert registry.tables[2].standing == "current"
    assert registry.tables[1].standing == "replaced"


def test_a_renamed_table_releases_its_old_destination() -> None:
    before = _register(_table(1, "public", "orders"))
    after = before.register(_table(1, "public", "orders_old"), _published(1))
    assert [table.target for table in after.unused(before.tables.values())] == [("public", "orders")]
    again = after.register(_table(2, "shop", "orders"), _published(1, 2))
    assert {table.destination for table in again.tables.values()} == {"orders", "orders_old"}


def test_published_tables_are_checked_before_their_first_change() -> None:
    published = [_table(1, "public", "orders"), _table(2, "shop", "orders")]
    with pytest.raises(ConfigError):
        EMPTY.check(published)
    EMPTY.check(published[:1])
    _register(_table(1, "public", "orders_old")).check(published)


def test_a_known_table_does_not_stop_earlier_changes_of_another() -> None:
    """The sink is behind: shop.orders exists now, and public.orders, which is gone, has changes to be delivered."""
    known = RegisteredTable(2, ("shop", "orders"), ("shop", "orders"), "orders", "known")
    registry = EMPTY.register(known, _published(2)).register(_table(1, "public", "orders"), _published(2))
    registry = registry.register(_table(2, "shop", "orders"), _published(2))
    assert registry.tables[2].standing == "current"


def test_a_table_that_is_newer_than_the_list_is_not_dropped() -> None:
    listed = PublishedOids(frozenset({1}), LATER)
    assert listed.is_dropped(2, SEEN_AT)
    assert not listed.is_dropped(1, SEEN_AT)
    assert not listed.is_dropped(2, LATER + 1)
    assert not PublishedOids().is_dropped(2, SEEN_AT), "capture does not list tables"


def test_the_registry_is_stored(tmp_path: Path) -> None:
    store = Store.open(tmp_path.as_uri())
    registry = _register(_table(1, "a", "t", "é"), _table(2, "b", "u"))
    destination_registry.save(store, "bus", registry)
    assert destination_registry.load(store, "bus", EMPTY.hint) == registry
    assert destination_registry.load(store, "other", EMPTY.hint) == EMPTY
    store.replace("cursors/bus/tables.json", b'[{"oid": 1}]')
    with pytest.raises(CorruptError):
        destination_registry.load(store, "bus", EMPTY.hint)
