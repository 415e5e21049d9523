"""`tailrace demo`: captures a sample shop, delivers its changes to four kinds of sinks, and compares the results."""

from __future__ import annotations

import importlib.util
import logging
import tempfile
import threading
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click
from rich.console import Console

from tailrace import settings
from tailrace.cli import output
from tailrace.cli.demo import demo_lake, demo_replica, screen, summary
from tailrace.cli.demo.demo_capture import DemoCapture
from tailrace.cli.demo.demo_lake import DemoLake
from tailrace.cli.demo.demo_reader import DemoReader
from tailrace.cli.demo.demo_replica import DemoReplica
from tailrace.cli.stop_signal import on_stop
from tailrace.embedded.postgres import Postgres
from tailrace.embedded.shop import Shop
from tailrace.errors import ConfigError
from tailrace.store import Store

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tailrace.cli.demo.demo_consumer import DemoConsumer
    from tailrace.cli.demo.demo_mysql import DemoMysql
    from tailrace.cli.demo.demo_slatedb import DemoSlateDb

_NATS_MODULES: Final = ("msgpack", "zstandard")
_KAFKA_MODULES: Final = ("confluent_kafka", "msgpack")
_MYSQL_MODULES: Final = ("pymysql",)
_SLATEDB_MODULES: Final = ("slatedb",)


@click.command("demo", short_help="Capture and replicate a sample shop on embedded servers.")
@click.option("--seconds", type=click.FloatRange(min=1), default=30.0, show_default=True, help="Run for this long.")
@click.option(
    "--with",
    "extra",
    type=click.Choice(["kafka", "mysql", "slatedb"]),
    multiple=True,
    help="Also deliver to a Kafka server (45 MB) or a MariaDB (150 MB), fetched from Maven Central on its first use, "
    "or capture a SlateDB database.",
)
def command(seconds: float, extra: tuple[str, ...]) -> None:
    """Run a small shop on an embedded PostgreSQL, capture its changes into a log, and deliver them to a second
    PostgreSQL, an audit trail, an Iceberg lake and a NATS stream. Show the changes live. Meanwhile you can query the
    lake with psql and subscribe to the stream.

    At the end, the demo compares the rows of the database with those in the log, the replica, the lake and the stream.
    It prints some of them and the history of one order, and reverts one change. Without Spark (pip install
    'tailrace[spark]') there is only the log. The lake also needs tailrace[query], the stream tailrace[nats], Kafka
    tailrace[kafka], MariaDB tailrace[mysql], and SlateDB tailrace[slatedb].
    """
    console = Console(highlight=False)
    output.log_to_stderr(logging.ERROR)
    directory = Path(tempfile.mkdtemp(prefix="tailrace-demo-"))
    store = Store.open(str(directory / "store"))
    console.print("starting PostgreSQL 18 with a small shop …")
    stopping = threading.Event()
    with ExitStack() as stack:
        server = stack.enter_context(Postgres())
        shop = Shop(server)
        configured = settings.Settings(
            source=settings.SourceSettings(url=server.url), store=settings.StoreSettings(url=str(directory / "store"))
        )
        capture = stack.enter_context(DemoCapture(configured, store))
        reader = stack.enter_context(DemoReader(store))
        carts = stack.enter_context(_slatedb(directory)) if "slatedb" in extra else None
        replica = lake = None
        consumers: list[DemoConsumer] = []
        mysql: DemoMysql | None = None
        if demo_replica.is_installed():
            warehouse = directory / "lake" if demo_lake.is_installed() else None
            consumers = [stack.enter_context(consumer) for consumer in _consumers(extra)]
            mysql = stack.enter_context(_mysql()) if "mysql" in extra else None
            others = [*(consumer.sink for consumer in consumers), *([mysql.sink] if mysql is not None else [])]
            replica = stack.enter_context(DemoReplica(configured, reader, warehouse, others))
            lake = stack.enter_context(DemoLake(warehouse)) if warehouse is not None else None
        components = screen.DemoComponents(capture, reader, replica, lake, consumers, mysql, carts)
        on_stop(stopping.set)  # Ctrl-C ends the demo early, with its summary
        with shop:
            screen.show(console, components, seconds, stopping)
        if replica is not None:
            summary.await_replica(console, capture, replica, stopping)
        summary.show(console, components, store)


def _consumers(extra: Sequence[str]) -> Iterator[DemoConsumer]:
    if _has(_NATS_MODULES):
        from tailrace.cli.demo.nats_consumer import NatsConsumer

        yield NatsConsumer()
    if "kafka" in extra:
        if not _has(_KAFKA_MODULES):
            raise ConfigError("the sink kafka is not installed", "run pip install 'tailrace[kafka]'")
        from tailrace.cli.demo.kafka_consumer import KafkaConsumer

        yield KafkaConsumer()


def _mysql() -> DemoMysql:
    if not _has(_MYSQL_MODULES):
        raise ConfigError("the sink mysql is not installed", "run pip install 'tailrace[mysql]'")
    from tailrace.cli.demo.demo_mysql import DemoMysql

    return DemoMysql()


def _slatedb(directory: Path) -> DemoSlateDb:
    if not _has(_SLATEDB_MODULES):
        raise ConfigError("SlateDB's binding is not installed", "run pip install 'tailrace[slatedb]'")
    from tailrace.cli.demo.demo_slatedb import DemoSlateDb

    return DemoSlateDb(directory)


def _has(modules: Sequence[str]) -> bool:
    return all(importlib.util.find_spec(name) for name in modules)
