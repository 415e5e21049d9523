"""The embedded servers start quickly, crash on request, and end with this process."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import obstore
import psycopg
import pymysql
import pytest
from confluent_kafka import KafkaException, Producer
from obstore.exceptions import AlreadyExistsError
from obstore.store import S3Store
from tests.fixtures.kafka import QUIET, admin_client, console_consume, create_topic
from tests.fixtures.postgres import running
from tests.fixtures.tls import Authority, Tls

from tailrace.embedded.kafka import KafkaServer
from tailrace.embedded.mariadb import MariaDbServer
from tailrace.embedded.mysql_family import MysqlFamilyServer
from tailrace.embedded.postgres import Postgres
from tailrace.embedded.process import wait_until
from tailrace.embedded.s3 import S3Server
from tailrace.errors import ConfigError


@pytest.mark.parametrize("version", [18, 16])
def test_committed_rows_survive_a_kill(version: int) -> None:
    with running(version) as server:
        with server.connect() as connection:
            assert connection.info.server_version // 10000 == version
            assert connection.execute("SHOW wal_level").fetchone() == ("logical",)
            connection.execute("CREATE TABLE t AS SELECT 1 AS a")
            server.kill9()
            with pytest.raises(psycopg.OperationalError):
                connection.execute("SELECT 1")
        assert not server.is_running
        server.start()
        with server.connect() as connection:
            assert connection.execute("SELECT a FROM t").fetchone() == (1,)
        server.conf(work_mem="7MB")
        with server.connect() as connection:
            assert connection.execute("SHOW work_mem").fetchone() == ("7MB",)
        for name in ("pg_recvlogical", "pgbench", "pg_basebackup"):
            assert server.bin(name).exists()


def test_encodings(postgres: Postgres) -> None:
    for encoding in ("LATIN1", "SQL_ASCII"):
        with psycopg.connect(postgres.create_database(f"in {encoding}", encoding)) as connection:
            row = connection.execute("SELECT current_setting('server_encoding')::text COLLATE \"C\"").fetchone()
            assert row in ((encoding,), (encoding.encode(),))
        with postgres.connect() as connection:
            connection.execute(f'DROP DATABASE "in {encoding}"'.encode())


@pytest.mark.parametrize("last_words", ["os.kill(os.getpid(), 9)", "sys.exit(3)"])
def test_no_server_outlives_its_process(last_words: str) -> None:
    program = (
        "import os, sys\n"
        "from tailrace.embedded.postgres import Postgres\n"
        "server = Postgres(fsync=False).start()\n"
        "print(server.pid, server.directory, flush=True)\n" + last_words
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode in (-signal.SIGKILL, 3), done.stderr
    pid, directory = done.stdout.split()

    def is_gone() -> bool:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return not os.path.exists(f"/proc/{pid}")
        return state == "Z"

    assert wait_until(is_gone, 30)
    if done.returncode == 3:
        assert not Path(directory).exists()
    else:
        subprocess.run(["rm", "-r", directory], check=True)


def test_a_missing_wheel_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(ConfigError) as caught:
        Postgres()
    assert "tailrace[embedded]" in caught.value.hint
    with pytest.raises(ConfigError, match="no embedded PostgreSQL 12"):
        Postgres(12)


def test_s3_create_does_not_overwrite(s3_server: S3Server) -> None:
    store = S3Store.from_url(
        s3_server.url_of("embedded"),
        config=s3_server.options,  # type: ignore[arg-type]
        client_options={"allow_http": True},
    )
    obstore.put(store, "key", b"first", mode="create")
    with pytest.raises(AlreadyExistsError):
        obstore.put(store, "key", b"second", mode="create")
    assert bytes(obstore.get(store, "key").bytes()) == b"first"
    wrong = S3Store.from_url(
        s3_server.url_of("embedded"),
        config=s3_server.options | {"secret_access_key": "wrong"},  # type: ignore[arg-type]
        client_options={"allow_http": True},
    )
    with pytest.raises(obstore.exceptions.BaseError):
        obstore.get(wrong, "key")


def test_committed_messages_survive_a_kill(start_kafka: Callable[..., KafkaServer]) -> None:
    """Also those whose transaction was committed at the last moment."""
    server = start_kafka()
    create_topic(server.bootstrap, "events", 2)
    producer = Producer({"bootstrap.servers": server.bootstrap, "transactional.id": "test", **QUIET})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce("events", b"aborted", b"key")
    producer.flush(30)
    producer.abort_transaction(30)
    producer.begin_transaction()
    producer.produce("events", b"committed", b"key", headers=[("name", b"header")])
    producer.produce("events", None, b"key")
    producer.commit_transaction(30)
    server.kill9()
    port = server.port
    server.start()
    assert server.port == port
    found = console_consume(server, "events", 2)
    partition = found[0][0]
    assert found == [
        (partition, "name:header", "key", "committed"),
        (partition, "NO_HEADERS", "key", "null"),
    ]


def test_kafka_demands_passwords_and_tls(start_kafka: Callable[..., KafkaServer], tls: Tls) -> None:
    server = start_kafka(users={"alice": "secret"}, certificate=tls.file)

    def topics(mechanism: str, password: str, authority: Authority) -> set[str]:
        client = admin_client(
            server.bootstrap,
            **{"security.protocol": "SASL_SSL", "ssl.ca.location": str(authority.file)},
            **{"sasl.mechanism": mechanism, "sasl.username": "alice", "sasl.password": password},
        )
        return set(client.list_topics(timeout=3).topics)

    create_topic(server.internal_bootstrap, "events")
    for mechanism in ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"):
        assert topics(mechanism, "secret", tls.authority) == {"events"}
    with pytest.raises(KafkaException):
        topics("SCRAM-SHA-512", "wrong", tls.authority)
    with pytest.raises(KafkaException):
        topics("PLAIN", "secret", tls.stranger)


@pytest.mark.parametrize("start", ["start_mariadb", "start_mysql"])
def test_mysql_survives_a_kill_and_offers_tls(request: pytest.FixtureRequest, tls: Tls, start: str) -> None:
    server: MysqlFamilyServer = request.getfixturevalue(start)(certificate=tls.file)

    def connect(authority: Authority, password: str = server.password) -> pymysql.Connection[Any]:
        return pymysql.connect(
            host="localhost",
            port=server.port,
            user=server.user,
            password=password,
            database=server.database,
            ssl_ca=str(authority.file),
            ssl_verify_cert=True,
            ssl_verify_identity=True,
        )

    with connect(tls.authority) as connection, connection.cursor() as cursor:
        cursor.execute("SHOW STATUS LIKE 'Ssl_version'")
        assert cursor.fetchall() == (("Ssl_version", "TLSv1.3"),)
        cursor.execute("CREATE TABLE t AS SELECT 1 AS a")
    with pytest.raises(pymysql.OperationalError, match="CERTIFICATE_VERIFY_FAILED"):
        connect(tls.stranger)
    with pytest.raises(pymysql.OperationalError, match="Access denied"):
        connect(tls.authority, "wrong")
    port, pid = server.port, server.pid
    server.kill9()
    assert not server.is_running
    server.start()
    assert server.port == port
    assert server.pid != pid
    with connect(tls.authority) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT a FROM t")
        assert cursor.fetchall() == ((1,),)


def test_there_are_two_versions_of_mariadb() -> None:
    with pytest.raises(ConfigError, match=r"no embedded MariaDB 5.5"):
        MariaDbServer(version="5.5")
