"""Templates of destinations: every change goes where its table and row say, or is named in an error."""

from __future__ import annotations

import pytest
from tests.pgoutput import build
from tests.sinks.messages import runs

from tailrace.change import UNCHANGED
from tailrace.errors import ConfigError, PoisonError
from tailrace.sinks.messages.routing import DestinationTemplate

TABLE = runs.table(("id", "int4"), ("region", "text"))


def test_tables_operations_and_the_database() -> None:
    template = DestinationTemplate.parse("{{x}}.{database}.{schema}.{table}.{operation}", "shop")
    run = runs.changes(TABLE, build.insert((b"1", b"eu")), build.delete((b"1", None)))
    assert template.of_changes(run).to_pylist() == [
        "{x}.shop.public.orders.insert",
        "{x}.shop.public.orders.delete",
    ]
    assert template.of_table(("public", "orders")) == "{x}.shop.public.orders.*"


def test_columns_of_the_row() -> None:
    template = DestinationTemplate.parse("{table}.{region}", escape=lambda text: text.replace(".", "_"))
    run = runs.changes(TABLE, build.insert((b"1", b"eu")), build.update((b"1", b"u.s")))
    assert template.of_changes(run).to_pylist() == ["orders.eu", "orders.u_s"]
    assert template.of_table(("public", "orders")) == "orders.*"


@pytest.mark.parametrize(
    "message",
    [build.insert((b"1", None)), build.delete((b"1", None)), build.update((b"1", UNCHANGED))],
    ids=["null", "deleted row without the column", "not sent"],
)
def test_a_row_without_the_value_is_named(message: bytes) -> None:
    template = DestinationTemplate.parse("{region}")
    with pytest.raises(PoisonError, match="column region, which the destination depends on") as caught:
        template.of_changes(runs.changes(TABLE, build.insert((b"1", b"secret")), message))
    assert caught.value.positions == ("0/1000:1",)
    assert "secret" not in str(caught.value)


def test_the_key_of_a_deleted_row_is_known() -> None:
    template = DestinationTemplate.parse("{id}")
    assert template.of_changes(runs.changes(TABLE, build.delete((b"7", None)))).to_pylist() == ["7"]


def test_a_table_without_the_column_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"public\.orders has no column tenant"):
        DestinationTemplate.parse("{tenant}").of_changes(runs.changes(TABLE, build.insert((b"1", b"eu"))))


@pytest.mark.parametrize(
    ("template", "words"),
    [
        ("", "is empty"),
        ("{schema", "is not a template"),
        ("{}", "a placeholder is a name in braces"),
        ("{table:>9}", "a placeholder is a name in braces"),
        ("{schema}{table}", "there is nothing between {schema} and {table}"),
    ],
)
def test_invalid_templates(template: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        DestinationTemplate.parse(template)
