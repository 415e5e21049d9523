"""`tailrace init`: a settings file in which everything is explained."""

from __future__ import annotations

from pathlib import Path

import click

from tailrace.cli import DEFAULT_CONFIG, Invocation
from tailrace.errors import ConfigError

TEMPLATE = """\
# Settings of Tailrace. What is commented out shows the default.
# An environment variable TAILRACE_<SECTION>_<KEY> overrides a key here, such as TAILRACE_SOURCE_URL.

[source]
# The database to capture. Leave the password out: give it as PGPASSWORD, or in a file.
url = "postgresql://user@localhost:5432/database"
# password_file = "/run/secrets/postgres"

# The replication slot and the publication. Capture makes them when they are missing and the role may;
# `tailrace check` prints the SQL for an administrator otherwise.
# slot = "tailrace"
# publication = "tailrace"

# Which tables a publication made by capture carries: schema.table, where * is any run of characters and ? any one.
# Names are folded to lower case unless quoted: 'public."Orders"'.
# tables = ["public.*"]

# disable, prefer, require, verify-ca or verify-full. Unset: encrypted if the server can, and nothing verified.
# sslmode = "verify-full"
# The certificate of the authority that signed the server's; "system" for those the system trusts.
# sslrootcert = "/etc/ssl/certs/my-ca.pem"

[store]
# Where the log lives: file://, s3://, gs:// or az://.
url = "file:///var/lib/tailrace"

# Passed to the object store; credentials come from the environment or the machine's role where this says nothing.
# [store.options]
# endpoint = "https://s3.example.com"
# region = "eu-central-1"

[capture]
# At most one segment in this time, unless it is full: how long a commit may wait. Less is quicker, and more objects.
# seal_after_ms = 50
# ... or when it has this many bytes.
# segment_bytes = 16777216
# How often the server hears from us when there is nothing to say. Stay well below its wal_sender_timeout.
# status_interval_s = 10.0

[snapshot]
# Copy the tables when capture runs for the first time.
# on_start = true
# Tables, and parts of large ones, copied at the same time: each is one connection to the source.
# workers = 2
# A chunk ends at this many rows or bytes, whichever comes first; each worker holds one in memory.
# chunk_rows = 1000000
# chunk_bytes = 67108864

[retention]
# The log is kept whole unless one of these is set.
# max_age_hours = 720
# max_bytes = 1000000000000

[http]
# Where /health, /status, /metrics and a page for people are served, and POST /shutdown is taken.
# host = "127.0.0.1"
# Unset: `tailrace run` listens on 9464, `capture` and `deliver` do not. 0: nobody does.
# port = 9464
# What control calls must carry; needed on any host but loopback. Better as TAILRACE_HTTP_TOKEN than here.
# token = "secret"

[query]
# `tailrace query`: the tables of an iceberg sink over PostgreSQL's protocol, read-only.
# Elsewhere than on loopback, users and TLS are needed.
# host = "127.0.0.1"
# port = 5439
# Names with their passwords, or better a SCRAM verifier as pg_authid keeps it; also as TAILRACE_QUERY_USERS_<NAME>.
# Without any, whoever is on this machine may read.
# users = { analyst = "SCRAM-SHA-256$4096:…" }
# PEM files; the certificate's may hold the key, too.
# tls_cert = "server.crt"
# tls_key = "server.key"
# max_connections = 64
# Of all queries together. Unset: half of the machine's memory, and all of its processors.
# memory_bytes = 8000000000
# threads = 4
# Where sorts and joins go that do not fit into memory, and how much of it they may take.
# temp_directory = "/var/tmp"
# temp_bytes = 10737418240
# A session may set less, not more.
# statement_timeout_s = 300.0

# Where changes go, as many as you like: each reads the log at its own pace.
# [[sink]]
# files, postgres (a replica), iceberg (a lake), audit (an audit trail), nats (a stream), or package.module:Class of
# your own: see docs/sinks.
# type = "files"
# name = "archive"
# url = "s3://bucket/changes"
# format = "jsonl"
#
# What it gets to see, which every sink can be told: everything in the log unless said otherwise.
# tables = ["public.*"]
# exclude = ["public.audit_*"]
# route = "{schema}.{table}"
# Where it begins: snapshot (the tables as they are, then every change), earliest, latest, an LSN or a time. Unset: what
# suits the type, for most of them snapshot.
# start = "snapshot"
# [sink.columns]
# "public.customers" = "-password"
# [sink.mask]
# "*.*.email" = "hash"
# [sink.where]
# "public.orders" = "total > 100"
"""


@click.command("init", short_help="Write a tailrace.toml that explains every setting.")
@click.option("--force", is_flag=True, help="Overwrite a file that is there.")
@click.pass_obj
def command(invocation: Invocation, force: bool) -> None:
    """Write a tailrace.toml (or the file --config names) that explains every setting."""
    path = invocation.config or DEFAULT_CONFIG
    _write(path, force)
    click.echo(f"wrote {path}: set source.url and store.url in it, then run `tailrace check`")


def _write(path: Path, force: bool) -> None:
    try:
        with path.open("w" if force else "x", encoding="utf-8") as file:
            file.write(TEMPLATE)
    except FileExistsError:
        raise ConfigError(f"{path} is there already", "--force overwrites it") from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}") from None
