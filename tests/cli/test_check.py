"""`tailrace check`: its output, its exit codes, and that it does not leak the password."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from pathlib import Path

from click.testing import CliRunner
from tests.fixtures.postgres import Database, drop_database, make_database, running

from tailrace.cli import main


def test_check_exits_with_0_when_capture_can_run(any_database: Database) -> None:
    any_database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    result = CliRunner().invoke(main, ["check"], env={"TAILRACE_SOURCE_URL": any_database.url})
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines()[-1].startswith("capture can run: 0 errors, 0 warnings, ")
    assert "note: publication tailrace does not exist yet: capture creates it\n" in result.stdout
    assert (
        '    CREATE PUBLICATION "tailrace" FOR TABLE "public"."t" WITH (publish_via_partition_root = true);\n'
        in result.stdout
    )


def test_check_exits_with_1_when_it_cannot(database: Database) -> None:
    role = f"cdc_{database.name}"
    database.execute(f"CREATE ROLE {role} LOGIN REPLICATION; CREATE TABLE t (id int PRIMARY KEY)")
    try:
        env = {"TAILRACE_SOURCE_URL": database.server.url_of(database.name, role)}
        result = CliRunner().invoke(main, ["check"], env=env)
        assert result.exit_code == 1
        assert f"error: publication tailrace does not exist, and role {role} cannot create it" in result.stdout
        assert "capture cannot run: 2 errors, " in result.stdout, "it may not read the table either"
    finally:
        database.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")


def test_an_empty_database_can_be_captured(database: Database) -> None:
    result = CliRunner().invoke(main, ["check"], env={"TAILRACE_SOURCE_URL": database.url})
    assert result.exit_code == 0
    assert "warning: publication tailrace does not exist yet, and source.tables matches no table" in result.stdout
    assert '    CREATE PUBLICATION "tailrace" WITH (publish_via_partition_root = true);\n' in result.stdout


def test_check_of_a_server_that_is_not_running() -> None:
    result = CliRunner().invoke(main, ["check"], env={"TAILRACE_SOURCE_URL": "postgresql://u@127.0.0.1:1/d"})
    assert result.exit_code == 1
    assert result.stdout.startswith('error: source: connection to server at "127.0.0.1", port 1 failed: ')
    assert ". Check that the server runs" in result.stdout


def test_the_password_is_in_no_output(tmp_path: Path) -> None:
    with running(18, auth="scram-sha-256", password="pl4nted-right") as server:
        for password, code in (("pl4nted-right", 0), ("pl4nted-wrong", 1)):
            config = tmp_path / "tailrace.toml"
            config.write_text(f'[source]\nurl = "postgresql://postgres:{password}@127.0.0.1:{server.port}/postgres"\n')
            done = subprocess.run(
                [sys.executable, "-m", "tailrace", "check"], cwd=tmp_path, capture_output=True, text=True
            )
            assert done.returncode == code
            assert "pl4nted" not in done.stdout + done.stderr
        assert b"pl4nted" not in server.log.read_bytes()


def test_output_on_a_terminal_is_coloured() -> None:
    leader, follower = pty.openpty()
    url = "postgresql://u@127.0.0.1:1/d"
    environment = {**os.environ, "TAILRACE_SOURCE_URL": url, "TERM": "xterm-256color", "COLUMNS": "100"}
    environment.pop("NO_COLOR", None)
    process = subprocess.Popen([sys.executable, "-m", "tailrace", "check"], stdout=follower, env=environment)
    os.close(follower)
    shown = b""
    try:
        while data := os.read(leader, 65536):
            shown += data
    except OSError:  # Linux reports EIO when the other side is closed
        pass
    os.close(leader)
    assert process.wait() == 1
    assert b"\x1b[1;31merror" in shown


def test_every_sink_is_checked(database: Database, tmp_path: Path) -> None:
    """Type, options, login, and what the role may create: since 15, not everybody may in the schema public."""
    role = f"guest_{database.name}"
    database.execute(f"CREATE TABLE t (id int PRIMARY KEY); CREATE ROLE {role} LOGIN")
    destination = database.server.url_of(database.name, role)
    config = tmp_path / "tailrace.toml"
    sinks = {
        "replica": f'type = "postgres"\nurl = "{destination}"',
        "trail": f'type = "audit"\nurl = "{destination}"',
        "nowhere": f'type = "postgres"\nurl = "{database.server.url_of("no_such_database")}"',
        "out": f'type = "files"\nurl = "{(tmp_path / "out").as_uri()}"',
        "closed": f'type = "files"\nurl = "{(config / "out").as_uri()}"',
        "lake": f'type = "iceberg"\nwarehouse = "{(tmp_path / "lake").as_uri()}"',
        "bus": 'type = "nats"\nurl = "nats://127.0.0.1:1"',
    }
    settings = f'[source]\nurl = "{database.url}"\n[store]\nurl = "{(tmp_path / "log").as_uri()}"\n'
    config.write_text(settings + "".join(f'[[sink]]\nname = "{name}"\n{lines}\n' for name, lines in sinks.items()))
    try:
        result = CliRunner().invoke(main, ["--config", str(config), "check"])
        assert result.exit_code == 1, result.output
        verdicts = dict(re.findall(r"^(?:sink )?(\w+) (can|cannot) run", result.stdout, re.MULTILINE))
        assert verdicts == {
            "capture": "can",
            **{name: "can" if name in ("out", "lake") else "cannot" for name in sinks},
        }
        assert f'GRANT CREATE ON DATABASE "{database.name}" TO "{role}";' in result.stdout
        assert f'GRANT USAGE, CREATE ON SCHEMA "public" TO "{role}";' in result.stdout
        assert "error: sink nowhere: " in result.stdout
        assert "no_such_database" in result.stdout
        assert "error: sink bus: " in result.stdout
        assert [file for file in tmp_path.rglob("*") if file.is_file()] == [config], "what it wrote is removed"
        for line in re.findall(r"^    (GRANT .*)$", result.stdout, re.MULTILINE):
            database.execute(line)
        again = CliRunner().invoke(main, ["--config", str(config), "check"]).stdout
        assert "sink replica can run" in again
        assert "sink trail can run" in again
    finally:
        database.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")

    config.write_text(settings + '[[sink]]\nname = "x"\ntype = "filess"\n[[sink]]\nname = "y"\ntype = "files"\n')
    result = CliRunner().invoke(main, ["--config", str(config), "check"])
    assert result.exit_code == 1
    assert "capture can run" in result.stdout, "the source is checked all the same"
    assert "error: settings: sink x type 'filess' is not a sink: did you mean files?" in result.stdout
    assert "error: settings: sink y: url is missing\n" in result.stdout


def test_what_others_use_is_left_alone(database: Database) -> None:
    """A slot of another database is not offered to be dropped, and a table that is not published need not be read."""
    role = f"cdc_{database.name}"
    database.execute(
        f"CREATE ROLE {role} LOGIN REPLICATION; CREATE TABLE open_ (id int PRIMARY KEY);"
        f" CREATE TABLE closed (id int PRIMARY KEY); GRANT SELECT ON open_ TO {role};"
        " CREATE PUBLICATION tailrace FOR TABLE open_"
    )
    other = make_database(database.server)
    slot = f"tailrace_{database.name}"
    other.execute(f"SELECT pg_create_logical_replication_slot('{slot}', 'pgoutput')")
    url = database.server.url_of(database.name, role)
    try:
        taken = CliRunner().invoke(main, ["check"], env={"TAILRACE_SOURCE_URL": url})
        assert taken.exit_code == 1
        assert f"error: slot {slot} belongs to database {other.name}, not {database.name}" in taken.stdout
        assert "drop_replication_slot" not in taken.stdout
        assert "terminate" not in taken.stdout
        other_slot = {"TAILRACE_SOURCE_URL": url, "TAILRACE_SOURCE_SLOT": "free_slot"}
        free = CliRunner().invoke(main, ["check"], env=other_slot)
        assert free.exit_code == 0, free.stdout
        assert "publication tailrace lacks tables that source.tables matches: public.closed" in free.stdout
    finally:
        drop_database(other)
        database.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")
