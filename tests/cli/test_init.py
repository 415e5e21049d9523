"""`tailrace init`, and what all commands share: settings, help, version."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.fixtures.postgres import Database

from tailrace.cli import main
from tailrace.settings import load
from tailrace.sinks import SINKS


@pytest.fixture
def working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_init_writes_a_file_that_loads_and_never_overwrites_it(working_directory: Path) -> None:
    first = CliRunner().invoke(main, ["init"])
    assert first.exit_code == 0, first.output
    load(working_directory / "tailrace.toml", {})
    (working_directory / "tailrace.toml").write_text("mine")
    second = CliRunner().invoke(main, ["init"])
    assert second.exit_code == 2
    assert second.stderr == "error: tailrace.toml already exists\nhint: --force overwrites it\n"
    assert (working_directory / "tailrace.toml").read_text() == "mine"
    assert CliRunner().invoke(main, ["init", "--force"]).exit_code == 0
    load(working_directory / "tailrace.toml", {})


def test_init_looks_at_the_database(database: Database, working_directory: Path) -> None:
    database.execute(
        'CREATE TABLE orders (id int PRIMARY KEY); CREATE TABLE bare (n int); CREATE SCHEMA "My Shop";'
        ' CREATE TABLE "My Shop"."odd\nname" (id int PRIMARY KEY); CREATE SCHEMA "x\n[http]\nport = 1";'
        ' CREATE TABLE "x\n[http]\nport = 1"."# slot = ""tailrace_database""" (id int PRIMARY KEY)'
    )
    url = database.url.replace("postgres@", "postgres:planted-secret@")
    made = CliRunner().invoke(main, ["init", url])
    assert made.exit_code == 0, made.output
    text = (working_directory / "tailrace.toml").read_text()
    found = load(working_directory / "tailrace.toml", {})
    assert found.source.url == database.url
    assert found.source.covers("public", "orders")
    assert found.source.covers("My Shop", "odd\nname")
    assert not found.source.covers("other", "t")
    assert found.http.port is None, "a name does not become a setting"
    assert f'# slot = "tailrace_{database.name}"' in text
    assert "# schema public: bare, orders" in text
    assert "# PostgreSQL 18, role postgres: superuser." in text
    assert "# Capture can run." in text
    assert "# warning: table public.bare has no primary key" in text
    assert "planted-secret" not in text
    for kind in SINKS:
        assert f'# type = "{kind}"' in text
    unreachable = CliRunner().invoke(main, ["--config", "other.toml", "init", "postgresql://nobody@127.0.0.1:1/x"])
    assert unreachable.exit_code == 1
    mistyped = CliRunner().invoke(main, ["--config", "other.toml", "init", "user:planted-secret@host/database"])
    assert mistyped.exit_code == 2
    assert mistyped.stderr.startswith("error: URL is not a connection URL, such as postgresql://user@host/database")
    assert "planted-secret" not in mistyped.output
    assert not (working_directory / "other.toml").exists()


def test_init_writes_the_file_that_config_names(working_directory: Path) -> None:
    assert CliRunner().invoke(main, ["--config", "other.toml", "init"]).exit_code == 0
    assert CliRunner().invoke(main, ["init"], env={"TAILRACE_CONFIG": "third.toml"}).exit_code == 0
    assert sorted(p.name for p in working_directory.iterdir()) == ["other.toml", "third.toml"]
    assert CliRunner().invoke(main, ["--config", "no/such/place.toml", "init"]).exit_code == 2


def test_wrong_settings_exit_with_2(working_directory: Path) -> None:
    (working_directory / "tailrace.toml").write_text("[sorce]")
    result = CliRunner().invoke(main, ["check"])
    assert result.exit_code == 2
    assert result.stderr.startswith(
        "error: tailrace.toml: 2 settings are wrong\n  sorce is not a setting: did you mean"
    )
    assert "hint: " in result.stderr
    assert CliRunner().invoke(main, ["--config", "absent.toml", "check"]).exit_code == 2


def test_help_and_version_import_no_command(working_directory: Path) -> None:
    program = (
        "import sys; from tailrace.cli import main\n"
        "try: main([sys.argv[1]])\n"
        "except SystemExit: pass\n"
        "print([m for m in sys.modules if m.startswith(('tailrace.cli.', 'pyarrow', 'numba', 'psycopg', 'rich'))])"
    )
    for option in ("--help", "--version"):
        done = subprocess.run([sys.executable, "-c", program, option], capture_output=True, text=True, check=True)
        assert done.stdout.splitlines()[-1] == "['tailrace.cli.global_option']"
        assert "tailrace" in done.stdout
