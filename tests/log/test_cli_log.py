"""`tailrace log` on the command line."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from tests.log.stream import Server, write

from tailrace.change import Change
from tailrace.cli import main
from tailrace.log import segment
from tailrace.log.timestamp import format_timestamp
from tailrace.store import Store

FIELDS = [
    *("position", "commit_lsn", "ordinal", "lsn", "xid", "committed_at", "operation", "schema", "table"),
    *("relation_id", "key", "before", "after", "unchanged", "message_prefix", "message"),
]


@pytest.fixture
def server() -> Server:
    return Server(1).work(40)


@pytest.fixture
def url(tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    url = (tmp_path / "store").as_uri()
    write(Store.open(url), server, most=8)
    return url


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["log", *arguments])


def lines(*arguments: str) -> list[dict[str, Any]]:
    result = run(*arguments)
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


def positions(changes: list[Change]) -> list[str]:
    return [str(change.position) for change in changes]


def test_cat_json(url: str, server: Server) -> None:
    found = lines("cat", "--json", "--store", url)
    assert [f["position"] for f in found] == positions(server.changes)
    for printed, change in zip(found, server.changes, strict=True):
        assert list(printed) == FIELDS
        assert printed["commit_lsn"] == str(change.position.commit_lsn)
        assert printed["committed_at"] == format_timestamp(change.committed_at)
        assert printed["committed_at"].endswith("Z")
        assert printed["unchanged"] == list(change.unchanged)
        assert printed["operation"] == change.operation
        if change.operation == "TRUNCATE":
            assert printed["message"] == "CASCADE"
        if change.relation is not None:
            assert (printed["schema"], printed["table"]) == ("public", change.relation.name)


def test_cat_between_bounds(url: str, server: Server) -> None:
    low, high = server.changes[10], server.changes[-10]
    between = [c for c in server.changes if low.position <= c.position < high.position]
    arguments = ("cat", "--json", "--store", url, "--from", str(low.position), "--to", str(high.position))
    assert [f["position"] for f in lines(*arguments)] == positions(between)
    by_lsn = [c for c in server.changes if c.position.commit_lsn >= low.position.commit_lsn]
    found = lines("cat", "--json", "--store", url, "--from", str(low.position.commit_lsn))
    assert [f["position"] for f in found] == positions(by_lsn)
    by_time = [c for c in server.changes if low.committed_at <= c.committed_at < high.committed_at]
    times = ("--from", low.committed_at.isoformat(), "--to", high.committed_at.replace(tzinfo=None).isoformat())
    assert [f["position"] for f in lines("cat", "--json", "--store", url, *times)] == positions(by_time)


def test_cat_selected_tables(url: str, server: Server) -> None:
    some = [c for c in server.changes if c.table in ("t100", "t102")]
    found = lines("cat", "--json", "--store", url, "--table", "public.t100", "--table", "*.?102")
    assert [f["position"] for f in found] == positions(some)


def test_cat_prints_readable_lines(url: str, server: Server) -> None:
    result = run("cat", "--store", url)
    assert len(result.stdout.splitlines()) == len(server.changes)
    first = server.changes[0]
    assert result.stdout.startswith(f"{first.position}  xid {first.xid}  2025-")


@pytest.mark.parametrize("bound", ["yesterday", "0/XYZ", "0/1:x"])
def test_cat_rejects_invalid_bounds(url: str, bound: str) -> None:
    assert run("cat", "--store", url, "--from", bound).exit_code == 2


def test_store_from_settings(url: str, server: Server) -> None:
    Path("tailrace.toml").write_text(f'[store]\nurl = "{url}"\n')
    assert len(lines("cat", "--json")) == len(server.changes)
    Path("tailrace.toml").unlink()
    result = run("cat")
    assert result.exit_code == 2
    assert "store.url is missing" in result.output


def test_ls(url: str, server: Server) -> None:
    found = lines("ls", "--json", "--store", url)
    assert [f["first_id"] for f in found] == list(range(1, len(found) + 1))
    assert found[0]["first"] == str(server.changes[0].position)
    assert {"open"} <= {flag for f in found for flag in f["flags"]}
    result = run("ls", "--store", url)
    assert len(result.stdout.splitlines()) == len(found) + 1
    store = Store.open(url)
    store.replace(segment.key(2), b"rubbish")
    assert lines("ls", "--json", "--store", url)[1]["flags"] == ["damaged"]
    assert "damaged" in run("ls", "--store", url).stdout


def test_verify_reports_faults(url: str) -> None:
    result = run("verify", "--store", url)
    assert result.exit_code == 0
    assert "no findings" in result.stdout
    store = Store.open(url)
    store.delete(segment.key(3))
    result = run("verify", "--store", url)
    assert result.exit_code == 1
    assert f"{segment.key(3)}: segment 3: is missing" in result.stdout
    assert result.stdout.endswith("1 findings\n")


def test_compact_then_retain(url: str, server: Server) -> None:
    assert "0 objects merged into 0" in run("compact", "--store", url).stdout
    assert "merged into 1" in run("compact", "--older-than", "0", "--store", url).stdout
    assert lines("ls", "--json", "--store", url)[0]["flags"][0] == "merged"
    assert len(lines("cat", "--json", "--store", url)) == len(server.changes)
    result = run("retain", "--store", url)
    assert result.exit_code == 2
    assert "no limit is given" in result.output
    store = Store.open(url)
    store.create("cursors/hook/position.json", json.dumps({"position": "0/1:0"}).encode())
    result = run("retain", "--max-bytes", "1", "--store", url)
    assert result.stdout.startswith("0 objects")
    assert "more is retained for sink hook, whose cursor is at 0/1:0" in result.stdout
    assert run("retain", "--max-age-hours", "0", "--dry-run", "--force", "--store", url).exit_code == 0
    assert run("retain", "--max-age-hours", "0", "--force", "--store", url).exit_code == 0
    assert run("verify", "--store", url).exit_code == 0


def test_closed_pipe_is_not_an_error(url: str) -> None:
    code = "import sys; from tailrace.cli import main; main(sys.argv[1:])"
    program = [sys.executable, "-c", code, "log", "cat", "--json", "--store", url]
    process = subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    process.stdout.close()
    assert process.stderr is not None
    assert process.stderr.read() == b""
    process.stderr.close()
    process.wait()


def test_follow_until_a_position(url: str, server: Server) -> None:
    end = server.changes[-1].position
    found = lines("cat", "--json", "--follow", "--store", url, "--to", str(end))
    assert [f["position"] for f in found] == positions(server.changes[:-1])


def test_package_root_is_cheap_and_exports_the_api() -> None:
    code = (
        "import sys, tailrace; assert 'pyarrow' not in sys.modules and 'obstore' not in sys.modules; "
        "tailrace.Lsn, tailrace.Position, tailrace.Change; assert 'pyarrow' not in sys.modules; tailrace.LogReader"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
