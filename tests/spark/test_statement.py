"""The relation that a statement results in, and the statements that are refused: analysed by Spark, without a log."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from tailrace import settings
from tailrace.change import Column, Relation, Type
from tailrace.delivery.sink_settings import SinkSettings
from tailrace.errors import ConfigError
from tailrace.spark.statement.analysis import Statement
from tailrace.spark.statement.derivation import CHANGES, Derivation
from tailrace.types import sql_name

INT, TEXT, NUMERIC, TIME = (
    Type(oid, "pg_catalog", name) for oid, name in ((23, "int4"), (25, "text"), (1700, "numeric"), (1083, "time"))
)
ORDERS = Relation(
    1,
    "public",
    "orders",
    "d",
    (
        Column("id", INT, is_identity=True, number=1, nullable=False),
        Column("status", TEXT, number=2),
        Column("total", NUMERIC, (10 << 16 | 2) + 4, number=3),
        Column("at", TIME, number=4),
        Column("Customer", INT, number=5),
    ),
    ("id",),
)


def derivation(spark: SparkSession, sql: str = "", *, keeps_tables: bool = True, **more: Any) -> Derivation:
    common = SinkSettings(type="postgres", name="replica", sql=sql, **more)
    return Statement(spark, common, settings.StoreSettings("memory:"), keeps_tables).analysis(ORDERS).derivation


def test_columns_types_and_key(spark: SparkSession) -> None:
    found = derivation(
        spark,
        "SELECT id AS order_id, upper(status) AS status, total, total * 1.5 AS gross, at, `Customer` + 1L AS next,"
        " _operation AS operation, _committed_at FROM orders o WHERE o.total > 0 AND id > 1",
    )
    assert found.result.key == ("order_id",)
    assert [(c.name, sql_name(c.type, c.modifier)) for c in found.result.columns] == [
        ("order_id", "int4"),
        ("status", "text"),
        ("total", "numeric(10,2)"),
        ("gross", "numeric(13,3)"),
        ("at", "time"),
        ("next", "int8"),
        ("operation", "text"),
        ("_committed_at", "timestamptz"),
    ]
    assert [c.source for c in found.columns] == ["id", None, "total", None, "at", None, None, None]
    assert found.condition == {"id", "total"}
    assert found.computed_from == {"id", "total", "status", "Customer"}


def test_columns_have_the_names_of_the_table_unless_they_have_aliases(spark: SparkSession) -> None:
    found = derivation(spark, "SELECT ID, Status AS Condition, total * 1.5 FROM orders")
    assert [c.name for c in found.result.columns] == ["id", "Condition", "(total * 1.5)"]


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT * FROM orders",
        "SELECT * FROM public.orders",
        "SELECT orders.* FROM orders WHERE public.orders.id > 0",
        "WITH a AS (SELECT * FROM orders), b AS (SELECT * FROM a WHERE id > 0) SELECT * FROM b",
        "SELECT x.* FROM (SELECT * FROM orders) x WHERE x.id > 0",
    ],
)
def test_a_star_selects_the_columns_of_the_table(spark: SparkSession, sql: str) -> None:
    found = derivation(spark, sql)
    assert [c.source for c in found.columns] == [c.name for c in ORDERS.columns]
    assert found.condition <= {"id"}


@pytest.mark.parametrize(
    ("sql", "reason"),
    [
        ("SELEC id FROM orders", "cannot be parsed.*Syntax error"),
        ("SELECT id, nope FROM orders", "does not fit public.orders.*`nope`"),
        ("SELECT id, upper() AS x FROM orders", "does not fit public.orders"),
        ("SELECT id, status + 1 FROM orders GROUP BY ALL", "GROUP BY"),
        ("SELECT DISTINCT id FROM orders", "DISTINCT"),
        ("SELECT count(*) AS n FROM orders", "aggregate"),
        ("SELECT id, row_number() OVER (ORDER BY id) AS n FROM orders", "window function"),
        ("SELECT id FROM orders ORDER BY id", "ORDER BY"),
        ("SELECT id FROM orders LIMIT 3", "LIMIT"),
        ("SELECT id FROM orders UNION ALL SELECT 1", "UNION"),
        ("SELECT id FROM orders UNION ALL SELECT id FROM orders", "2 tables"),
        ("SELECT id, explode(array(1, 2)) AS x FROM orders", "several rows"),
        ("SELECT id, rand() AS r FROM orders", "rand"),
        ("SELECT id, uuid() AS r FROM orders", "uuid"),
        ("SELECT id FROM orders WHERE current_timestamp() > _committed_at", "current_timestamp"),
        ("SELECT id, now() AS t FROM orders", "now"),
        ("SELECT id, current_date() AS t FROM orders", "current_date"),
        ("SELECT id, (SELECT 1) AS x FROM orders", "subquery"),
        ("SELECT id FROM orders WHERE EXISTS (SELECT 1)", "subquery"),
        ("SELECT o.id FROM orders o JOIN customers c ON c.id = o.id", "2 tables"),
        ("SELECT id FROM orders WHERE id IN (SELECT id FROM customers)", "`customers`|subquery"),
        ("SELECT 1 AS one", "0 tables"),
        ("SELECT id FROM a.b.orders", "a.b.orders"),
        ("SELECT id, id FROM orders", "two columns named id"),
        ("SELECT id, array(status) AS s FROM orders", "to_json"),
        ("SELECT status FROM orders", "loses id of the key"),
        ("SELECT id + 0 AS id FROM orders", "loses id of the key"),
        ("SELECT id FROM orders WHERE _operation = 'INSERT'", "_operation"),
        ("DROP TABLE orders", "0 tables|cannot be parsed"),
        ("SELECT id, _tailrace FROM orders", "_tailrace"),
    ],
)
def test_unsupported_statements_are_refused_with_a_reason(spark: SparkSession, sql: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason) as raised:
        derivation(spark, sql)
    assert "sink replica" in str(raised.value)
    assert "SELEC" not in sql or sql in str(raised.value)


def test_events_need_no_key_and_can_be_filtered_by_operation(spark: SparkSession) -> None:
    found = derivation(spark, "SELECT status FROM orders WHERE _operation = 'DELETE'", keeps_tables=False)
    assert found.result.key == ()
    assert found.condition == set()


def test_the_change_stream_can_be_selected_from(spark: SparkSession) -> None:
    columns = "position, `table`, get_json_object(after, '$.id') AS id, to_json(unchanged) AS unsent"
    sql = f"SELECT {columns} FROM changes WHERE operation <> 'MESSAGE'"
    common = SinkSettings(type="files", name="events", sql=sql)
    statement = Statement(spark, common, settings.StoreSettings("memory:"), False)
    assert statement.tables == ("*.*",)
    found = statement.derive(CHANGES)
    assert [(c.name, c.type.name) for c in found.columns] == [
        (name, "text") for name in ("position", "table", "id", "unsent")
    ]
    with pytest.raises(ConfigError, match="changes has none"):
        Statement(spark, common, settings.StoreSettings("memory:"), True).check()


def with_gross(changes: DataFrame) -> DataFrame:
    return changes.where("total > 0").withColumn("gross", f.col("total") * 2).drop("at", "Customer")


def with_count(changes: DataFrame) -> DataFrame:
    return changes.groupBy("id").count()


def returning_nothing(changes: DataFrame) -> None:
    pass


def test_a_function_is_analysed_like_a_statement(spark: SparkSession) -> None:
    found = derivation(spark, transform=f"{__name__}:with_gross", tables=("public.orders",))
    assert [c.name for c in found.result.columns] == ["id", "status", "total", "gross"]
    assert found.result.key == ("id",)
    assert found.condition == {"total"}


@pytest.mark.parametrize(
    ("transform", "tables", "reason"),
    [
        ("with_count", ("public.orders",), "aggregate"),
        ("returning_nothing", ("public.orders",), "not a DataFrame"),
        ("missing", ("public.orders",), "has no missing"),
        ("ORDERS", ("public.orders",), "not a function"),
        ("with_gross", ("public.*",), "one table"),
    ],
)
def test_unsupported_functions_are_refused(
    spark: SparkSession, transform: str, tables: tuple[str, ...], reason: str
) -> None:
    with pytest.raises(ConfigError, match=reason):
        derivation(spark, transform=f"{__name__}:{transform}", tables=tables)
