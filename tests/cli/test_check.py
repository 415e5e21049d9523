"""`tailrace check`: its output, its exit codes, and that it does not leak the password."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

from click.testing import CliRunner
from tests.fixtures.postgres import Database, running

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
    result = CliRunner().invoke(main, ["check"], env={"TAILRACE_SOURCE_URL": database.url})
    assert result.exit_code == 1
    assert result.stdout.startswith("error: publication tailrace does not exist, and no table")
    assert "capture cannot run: 1 error, " in result.stdout


def test_check_of_a_server_that_is_not_running() -> None:
    result = CliRunner().invoke(main, ["check"], env={"TAILRACE_SOURCE_URL": "postgresql://u@127.0.0.1:1/d"})
    assert result.exit_code == 1
    assert result.stderr.startswith('error: connection to server at "127.0.0.1", port 1 failed: ')
    assert "\nhint: check that the server runs" in result.stderr


def test_the_password_is_in_no_output(tmp_path: Path) -> None:
    with running(18, auth="scram-sha-256", password="pl4nted-right") as server:
        for password, code in (("pl4nted-right", 1), ("pl4nted-wrong", 1)):
            config = tmp_path / "tailrace.toml"
            config.write_text(f'[source]\nurl = "postgresql://postgres:{password}@127.0.0.1:{server.port}/postgres"\n')
            done = subprocess.run(
                [sys.executable, "-m", "tailrace", "check"], cwd=tmp_path, capture_output=True, text=True
            )
            assert done.returncode == code
            assert "pl4nted" not in done.stdout + done.stderr
        assert b"pl4nted" not in server.log.read_bytes()


def test_output_on_a_terminal_is_coloured(database: Database) -> None:
    leader, follower = pty.openpty()
    environment = {**os.environ, "TAILRACE_SOURCE_URL": database.url, "TERM": "xterm-256color", "COLUMNS": "100"}
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
