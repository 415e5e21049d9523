"""The changes of `public.orders` as a streaming table, and the orders of each customer over it.

Tailrace's data source is found by its package: nothing is registered here.
"""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

spark = SparkSession.active()


@dp.table
def order_changes() -> DataFrame:
    """Each change of the table, once, with the columns that Tailrace adds."""
    store = spark.conf.get("shop.store")
    rows = spark.readStream.format("tailrace").option("table", "public.orders").load(store)
    # Only the row and its position: Parquet has no empty structs, and maps cannot be compared.
    return rows.select("id", "customer", "total", "_operation", "_commit_lsn", "_ordinal", "_before")


@dp.materialized_view
def orders_by_customer() -> DataFrame:
    """The number and total of each customer's orders, from the newest version of each order."""
    changes = spark.read.table("order_changes")
    key = f.coalesce("_before.id", "id").alias("id")
    newest = changes.groupBy(key).agg(f.max_by(f.struct("*"), f.struct("_commit_lsn", "_ordinal")).alias("row"))
    existing = newest.where("row._operation != 'DELETE'")
    return existing.groupBy("row.customer").agg(f.count("*").alias("orders"), f.sum("row.total").alias("total"))
