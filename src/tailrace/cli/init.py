"""`tailrace init`: writes a settings file that explains every setting."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from tailrace.cli import DEFAULT_CONFIG, Invocation
from tailrace.errors import ConfigError
from tailrace.finding import Severity
from tailrace.log.terminal import printable

if TYPE_CHECKING:
    from tailrace.capture.postgres.check.table import SourceTable

_SHOWN_TABLES: Final = 20

TEMPLATE = """\
# Settings of Tailrace. Keys that are commented out show their defaults, or an example.
# An environment variable TAILRACE_<SECTION>_<KEY>, such as TAILRACE_SOURCE_URL, overrides a key in this file.

[source]
# The database to capture. Do not put the password here: use PGPASSWORD or a file.
url = "postgresql://user@localhost:5432/database"
# password_file = "/run/secrets/postgres"

# The replication slot and the publication. Capture creates them if they do not exist and the role has the privileges.
# Otherwise `tailrace check` prints the SQL for an administrator. By default, the slot's name contains the database's.
# slot = "tailrace_database"
# publication = "tailrace"

# The tables to capture: those of a publication that capture creates, and new ones, which it adds if it may. Write
# schema.table, where * matches any characters and ? any single one.
# Names are folded to lower case unless they are quoted: 'public."Orders"'.
# tables = ["public.*"]

# disable, prefer, require, verify-ca or verify-full. Unset: TLS if the server supports it, without verification.
# sslmode = "verify-full"
# The CA certificate that verifies the server; "system" uses the CAs that the operating system trusts.
# sslrootcert = "/etc/ssl/certs/my-ca.pem"

[store]
# Where the log is stored: a file://, s3://, gs:// or az:// URL.
url = "file:///var/lib/tailrace"

# Options of the object store. Credentials that are not given here come from the environment or the machine's role.
# [store.options]
# endpoint = "https://s3.example.com"
# region = "eu-central-1"

[capture]
# Capture seals at most one segment in this time, unless a segment is full. This bounds how long a commit waits. A lower
# value reduces latency and writes more objects.
# seal_after_ms = 50
# A segment is full at this size.
# segment_bytes = 16777216
# How often capture sends its status to an idle server. Keep it well below the server's wal_sender_timeout.
# status_interval_s = 10.0

[snapshot]
# Take a snapshot of every table when capture runs for the first time.
# on_start = true
# How many tables, or parts of large tables, are copied in parallel. Each uses one connection to the source.
# workers = 2
# A chunk ends at this many rows or bytes, whichever comes first. Each worker holds one chunk in memory.
# chunk_rows = 1000000
# chunk_bytes = 67108864

[retention]
# Unset: the whole log is retained. With a limit, the oldest part is removed once no sink needs it.
# max_age_hours = 720
# max_bytes = 1000000000000

[http]
# The HTTP server: a dashboard, /health, /status, /metrics, and control requests such as POST /shutdown.
# host = "127.0.0.1"
# Unset: `tailrace run` listens on 9464; `capture` and `deliver` do not listen. 0: no HTTP at all.
# port = 9464
# Control requests, and requests for rows, must send this token. Required on any host except loopback, for all requests.
# Prefer TAILRACE_HTTP_TOKEN to this key.
# token = "secret"
# Whether clients may read rows of the log, on the dashboard.
# explorer = true

[query]
# `tailrace query` serves the tables of an iceberg sink over the PostgreSQL protocol, read-only.
# On any host except loopback, users and TLS are required.
# host = "127.0.0.1"
# port = 5439
# User names with passwords or, better, SCRAM verifiers as in pg_authid. Also settable as TAILRACE_QUERY_USERS_<NAME>.
# Without users, anyone on this machine can read.
# users = { analyst = "SCRAM-SHA-256$4096:…" }
# PEM files. The certificate's file may contain the key.
# tls_cert = "server.crt"
# tls_key = "server.key"
# max_connections = 64
# Limits for all queries together. Unset: half of the machine's memory, and all of its processors.
# memory_bytes = 8000000000
# threads = 4
# Where sorts and joins spill when they do not fit into memory, and how many bytes they may use there.
# temp_directory = "/var/tmp"
# temp_bytes = 10737418240
# A session can set a shorter timeout, not a longer one.
# statement_timeout_s = 300.0

[archive]
# Physical backups: with true, `tailrace run` archives the server's WAL in the store, as `tailrace archive` does. With
# base backups (`tailrace backup`), the server can be restored to any moment. See docs/recovery.md.
# enabled = false
# The physical replication slot, and the archive's name in synchronous_standby_names.
# slot = "tailrace_archive"
# Write WAL as it arrives, so that commits can wait for the store and none is ever lost. Costs a PUT for most commits.
# synchronous = false
# WAL of an incomplete segment is written when it is this old.
# part_after_s = 10.0
# `tailrace backup expire` keeps what is needed to restore any moment of this time: a number with m, h, d or w.
# keep = "14d"

[verify]
# With true, `tailrace run` compares the rows of all destinations with the source's, as `tailrace verify` does: see
# docs/verify.md. It reads all rows.
# enabled = false
# How often, and how many rows a second on average.
# interval_s = 86400.0
# rows_per_second = 50000.0

[spark]
# Serve Spark's own pages about batches, jobs and tasks; `deliver` and `run` log their address.
# ui = false

# Sinks: the destinations of the changes. Add as many as you like; each reads the log at its own pace.
# [[sink]]
# files, postgres and mysql (replicas), iceberg (a lake), audit (an audit trail), nats, kafka, rabbitmq, webhook
# (messages), opensearch (a document for each row), valkey (rows, streams or invalidation), or
# package.module:Class for a sink of your own. See docs/sinks.
# type = "files"
# name = "archive"
# url = "s3://bucket/changes"
# format = "jsonl"
#
# Every sink accepts the following keys, which select and shape its changes. Without them it receives the whole log.
# tables = ["public.*"]
# exclude = ["public.audit_*"]
# route = "{schema}.{table}"
# Where the sink starts: snapshot (the current rows, then every change), earliest, latest, an LSN or a time. Unset:
# the default of the type, which is snapshot for most.
# start = "snapshot"
# What Spark SQL makes of one table's changes is delivered instead of the table. The key `transform` names a Python
# function, module:function, that does the same. `tailrace sink test NAME` shows the first rows. See docs/sql.md.
# sql = "SELECT id, upper(status) AS status FROM orders WHERE total > 0"
# How old rows may be that the statement looks up in other tables (`LEFT JOIN state.customers`).
# state_refresh_s = 60
# [sink.columns]
# "public.customers" = "-password"
# [sink.mask]
# "*.*.email" = "hash"
# [sink.where]
# "public.orders" = "total > 100"
#
# A replica in PostgreSQL; its mode history keeps every version of every row. See docs/sinks/postgres.md.
# [[sink]]
# type = "postgres"
# name = "replica"
# url = "postgresql://user@localhost:5432/replica"
# mode = "mirror"
#
# A lake of Iceberg tables, which `tailrace query` serves. See docs/sinks/iceberg.md.
# [[sink]]
# type = "iceberg"
# name = "lake"
# warehouse = "file:///var/lib/tailrace-lake"
# mode = "mirror"
#
# An audit trail: the table changes. See docs/audit.md.
# [[sink]]
# type = "audit"
# name = "audit"
# url = "postgresql://user@localhost:5432/audit"
# table = "public.changes"
#
# NATS JetStream. See docs/sinks/nats.md.
# [[sink]]
# type = "nats"
# name = "bus"
# url = "nats://localhost:4222"
# stream = "CDC"
#
# A replica in MySQL or MariaDB. Values that their types cannot hold stop it, unless on_unrepresentable says otherwise.
# [[sink]]
# type = "mysql"
# name = "mysql"
# url = "mysql://user@localhost:3306/database"
# on_unrepresentable = "stop"
#
# Sinks of messages choose an envelope: tailrace, debezium, row, outbox, cloudevents or sequin. See docs/messages.md.
# [[sink]]
# type = "kafka"
# name = "topics"
# url = "kafka://localhost:9092"
# topic = "{schema}.{table}"
# [[sink]]
# type = "rabbitmq"
# name = "events"
# url = "amqp://user@localhost:5672/"
# stream = "{schema}.{table}"
# [[sink]]
# type = "webhook"
# name = "hook"
# url = "https://example.com/changes"
# batch = 100
#
# A document for each row, in OpenSearch or Elasticsearch. See docs/sinks/opensearch.md.
# [[sink]]
# type = "opensearch"
# name = "search"
# url = "https://localhost:9200"
# index = "{schema}-{table}"
#
# Valkey or Redis: the rows as hashes or JSON, every change in a stream, or the keys of a cache invalidated.
# [[sink]]
# type = "valkey"
# name = "cache"
# url = "valkey://localhost:6379/0"
# mode = "hash"
# key = "{schema}:{table}:{key}"
"""


@click.command("init", short_help="Write a tailrace.toml that explains every setting.")
@click.argument("url", required=False)
@click.option("--force", is_flag=True, help="Overwrite an existing file.")
@click.pass_obj
def command(invocation: Invocation, url: str | None, force: bool) -> None:
    """Write a tailrace.toml, or the file that --config names, that explains every setting and every sink.

    With the URL of a database, look at the database, and write settings for it: its tables, and in comments its
    version, what the role may do, and what would keep capture from running. A password is not written: use PGPASSWORD.
    """
    path = invocation.config or DEFAULT_CONFIG
    if path.exists() and not force:
        raise ConfigError(f"{path} already exists", "--force overwrites it")
    _write(path, TEMPLATE if url is None else _settings_for(url))
    todo = "set source.url and store.url in it" if url is None else "set store.url in it"
    click.echo(f"wrote {path}: {todo}, then run `tailrace check`")


def _settings_for(url: str) -> str:
    """The template, filled with what the database says. Raises if it cannot be reached."""
    from tailrace.capture.postgres.check import inspect
    from tailrace.capture.postgres.check.server import read_server
    from tailrace.capture.postgres.check.table import read_tables
    from tailrace.capture.postgres.source_connection import connect
    from tailrace.capture.postgres.source_error import source_errors
    from tailrace.finding import can_run
    from tailrace.settings import Secret, SourceSettings
    from tailrace.settings.slot_name import default_slot

    try:
        source = SourceSettings(url=url)
    except ConfigError as error:
        raise ConfigError(f"URL {error}", error.hint) from None
    if source.password is None and "PGPASSWORD" in os.environ:
        source = replace(source, password=Secret(os.environ["PGPASSWORD"]))
    with source_errors(), connect(source) as connection:
        server = read_server(connection)
        tables = [table for table in read_tables(connection) if table.is_capturable and table.root is None]
    by_schema: dict[str, list[SourceTable]] = {}
    for table in tables:
        by_schema.setdefault(table.schema, []).append(table)
    patterns = [f"{_pattern(schema)}.*" for schema in by_schema] or ["public.*"]
    slot = default_slot(server.database)
    findings = inspect(replace(source, slot=slot, tables=tuple(patterns)))
    rights = "superuser" if server.is_superuser else "REPLICATION" if server.may_replicate else "no REPLICATION"
    comments = [f"PostgreSQL {server.major}, role {server.role}: {rights}."]
    comments += [f"schema {schema}: {_table_names(found)}" for schema, found in by_schema.items()] or ["No tables yet."]
    comments.append("Capture can run." if can_run(findings) else "Capture cannot run yet: see `tailrace check`.")
    comments += [
        f"{finding.severity}: {finding.subject} {finding.message}"
        for finding in findings
        if finding.severity is not Severity.NOTE
    ]
    filled = {
        '# slot = "tailrace_database"': f"# slot = {json.dumps(slot)}",
        '# tables = ["public.*"]': f"tables = {json.dumps(patterns, ensure_ascii=False)}",
        # Last, because names of tables may contain the other lines.
        'url = "postgresql://user@localhost:5432/database"': "\n".join(
            [f"url = {json.dumps(source.url)}", *(f"# {printable(line)}" for line in comments)]
        ),
    }
    text = TEMPLATE
    for placeholder, line in filled.items():
        text = text.replace(placeholder, line, 1)
    return text


def _pattern(schema: str) -> str:
    """A schema's name as a pattern reads it."""
    if re.fullmatch(r"[a-z_][a-z0-9_]*", schema):
        return schema
    return '"{}"'.format(schema.replace('"', '""'))


def _table_names(tables: Sequence[SourceTable]) -> str:
    shown = ", ".join(table.name for table in tables[:_SHOWN_TABLES])
    more = len(tables) - _SHOWN_TABLES
    return shown if more <= 0 else f"{shown} and {more} more"


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}") from None
