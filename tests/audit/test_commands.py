"""`tailrace history`, `revert`, `audit verify` and `audit erase`, on a real trail."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from tests import oracle
from tests.audit.conftest import TABLES
from tests.audit.trail_follower import Shell, trailing, write_config
from tests.capturing import configured
from tests.contract.audit_table import AuditTable
from tests.contract.delivery_driver import DeliveryDriver
from tests.fixtures.postgres import Database, drop_database, make_database
from tests.sinks.replicas import sink_to
from tests.stepping import DrivenStepper

from tailrace import settings, sinks
from tailrace.audit import trail, verify
from tailrace.capture.capture import Capture
from tailrace.cli import main
from tailrace.delivery.sink_settings import ConfiguredSink, SinkSettings
from tailrace.embedded.postgres import Postgres
from tailrace.errors import GapError
from tailrace.log import planner
from tailrace.log.retention import RetentionLimits, retain
from tailrace.sinks.audit.changes_table import ChangesTable
from tailrace.sinks.audit.trail_record import TrailRecord
from tailrace.store import Store


def test_history_follows_a_row_through_its_keys(shell: Shell) -> None:
    shell.audited.execute(
        'BEGIN; SELECT pg_logical_emit_message(true, \'_bemi\', \'{"user": "ann", "request": 7}\');'
        " INSERT INTO orders (id, status, amount) VALUES (42, 'new', 10.50); COMMIT",
        "UPDATE orders SET status = 'paid', details = '{\"by\": [1, 2.50]}' WHERE id = 42",
        "UPDATE orders SET id = 43 WHERE id = 42",
        "INSERT INTO orders (id, status) VALUES (42, 'another')",
        "DELETE FROM orders WHERE id = 43",
        "INSERT INTO lines VALUES (42, 1, '{}')",
    )
    text = shell.run("history", "public.orders", "43")
    assert "another" not in text, "the row that had the key later is another row"
    lines = text.splitlines()
    assert [line.split()[1] for line in lines if not line.startswith(" ")] == ["INSERT", "UPDATE", "UPDATE", "DELETE"]
    assert "user=ann request=7" in lines[0]
    assert '    status   "new" → "paid"' in lines
    assert '    details  null → {"by": [1, 2.50]}' in lines
    assert "    id  42 → 43" in lines
    history = [json.loads(line) for line in shell.run("history", "orders", "43", "--json").splitlines()]
    assert history[1]["changed"] == {
        "status": {"from": "new", "to": "paid"},
        "details": {"from": None, "to": {"by": [1, 2.5]}},
    }
    assert history[3]["row"] is None
    as_of = shell.run("history", "orders", "43", "--as-of", history[1]["committed_at"], "--json")
    assert json.loads(as_of)["status"] == "paid"
    assert "the row did not exist" in shell.run("history", "orders", "43", "--as-of", "2126-01-01")
    assert "no change of this row up to then" in shell.run("history", "orders", "43", "--as-of", "2020-01-01")
    assert "INSERT" in shell.run("history", "lines", "42", "1")
    assert "nothing about public.orders 7" in shell.run("history", "orders", "7", code=2)

    # Without a key: the last changes of the table, whatever row they are of.
    recent = shell.run("history", "orders", "--limit", "4").splitlines()
    changes = [line for line in recent if not line.startswith(" ")]
    assert [line.split()[1] for line in changes] == ["UPDATE", "UPDATE", "INSERT", "DELETE"]
    assert [line.rpartition("key ")[2] for line in changes] == ["42", "43", "42", "43"]
    assert '    status   "new" → "paid"' in recent, "the trail has the row before"
    assert len(shell.run("history", "orders", "--json").splitlines()) == 5
    assert "nothing about public.nowhere" in shell.run("history", "nowhere", code=2)

    transactions = [json.loads(line) for line in shell.run("history", "--transactions", "--json").splitlines()]
    assert [t["operations"] for t in transactions] == [
        {"INSERT": 1}, {"UPDATE": 1}, {"UPDATE": 1}, {"INSERT": 1}, {"DELETE": 1}, {"INSERT": 1},
    ]  # fmt: skip
    assert transactions[0]["context"] == {"user": "ann", "request": 7}
    assert transactions[-1]["tables"] == ["public.lines"]
    (line,) = shell.run("history", "lines", "--transactions").splitlines()
    assert f"xid {transactions[-1]['xid']}  1 INSERT  public.lines" in line
    shell.audited.trail.database.execute("ALTER TABLE changes RENAME TO hidden")
    assert "there is no audit trail yet" in shell.run("history", "orders", code=2)
    assert "name a TABLE" in shell.run("history", code=2)
    assert "takes no KEY" in shell.run("history", "orders", "1", "--transactions", code=2)


def test_revert_applies_the_statements_it_prints(shell: Shell) -> None:
    connection = shell.audited.log.connection
    shell.audited.execute(
        "INSERT INTO orders (id, status, amount, tags, details) VALUES"
        " (1, 'new', 1.10, '{a,\"b c\"}', '\"text\"'), (2, 'new', 'NaN', NULL, NULL), (3, 'gone', 0, '{}', '[]')",
        "INSERT INTO bare VALUES (1, 'a'), (1, 'a'), (2, NULL)",
    )
    before = {name: oracle.rows(connection, "public", name) for name in ("orders", "lines", "bare")}
    xid = shell.transaction(
        "UPDATE orders SET status = 'paid', tags = tags || '{x}', details = '{\"a\": 1}', placed_at = 'infinity'"
        " WHERE id < 3",
        "INSERT INTO orders (id) VALUES (4)",
        "INSERT INTO lines VALUES (4, 1, '{\"k\" : 1}'), (4, 2, NULL)",
        "DELETE FROM orders WHERE id = 3",
        "UPDATE orders SET id = 9 WHERE id = 1",
        "DELETE FROM bare WHERE ctid = (SELECT min(ctid) FROM bare)",
        "UPDATE bare SET t = 'z' WHERE n = 2",
    )
    shown = shell.run("revert", "--xid", str(xid))
    assert "not applied" in shown
    assert "-- undoes 9 changes of one transaction" in shown
    assert oracle.rows(connection, "public", "orders") != before["orders"], "shown, not done"
    assert "applied" in shell.run("revert", "--xid", str(xid), "--apply")
    for name, rows in before.items():
        assert oracle.rows(connection, "public", name) == rows, name
    context = shell.audited.rows()[-1]["context"]["tailrace_revert"]
    assert context["xid"] == xid
    assert context["transactions"] == [xid]
    # A revert can be reverted.
    shell.run("revert", "--context", f"tailrace_revert={json.dumps(context)}", "--apply")
    assert oracle.rows(connection, "public", "orders") != before["orders"]


def test_revert_supports_user_defined_types(shell: Shell) -> None:
    """A type without equality, and one whose equality operator is outside pg_catalog."""
    connection = shell.audited.log.connection
    shell.audited.execute(
        "CREATE EXTENSION vector",
        "CREATE TYPE note AS (at int, said json)",
        "CREATE TYPE mood AS ENUM ('good', 'bad')",
        "CREATE TABLE own (id int PRIMARY KEY, n note, v vector(2), m mood[])",
        "ALTER TABLE own REPLICA IDENTITY FULL",
        """INSERT INTO own VALUES (1, '(1,"{""a"": 1}")', '[1,2]', '{good}'), (2, NULL, '[3,4]', '{bad,good}')""",
    )
    before = oracle.rows(connection, "public", "own")
    xid = shell.transaction(
        """UPDATE own SET n = '(2,"[]")', v = '[5,6]', m = '{}' WHERE id = 1""",
        "DELETE FROM own WHERE id = 2",
        "INSERT INTO own VALUES (3, '(,)', NULL, '{bad}')",
    )
    assert oracle.rows(connection, "public", "own") != before
    shell.run("revert", "--xid", str(xid), "--apply")
    assert oracle.rows(connection, "public", "own") == before


def test_revert_reports_conflicts(shell: Shell) -> None:
    connection = shell.audited.log.connection
    shell.audited.execute("INSERT INTO orders (id, status) VALUES (1, 'new'), (2, 'new'), (3, 'new')")
    xid = shell.transaction("UPDATE orders SET status = 'paid'")
    shell.audited.execute("UPDATE orders SET amount = 5 WHERE id = 2")
    before = oracle.rows(connection, "public", "orders")
    output = shell.run("revert", "--xid", str(xid), "--apply", code=1)
    assert "1 later change of the same rows: UPDATE of public.orders 2" in output
    assert oracle.rows(connection, "public", "orders") == before
    shell.run("revert", "--xid", str(xid), "--apply", "--force")
    assert connection.execute("SELECT DISTINCT status FROM orders").fetchall() == [("new",)]
    assert connection.execute("SELECT amount::text FROM orders WHERE id = 2").fetchall() == [("5.00",)]


def test_revert_detects_changes_that_the_trail_lacks(shell: Shell) -> None:
    """The statements detect them, and nothing is changed."""
    connection = shell.audited.log.connection
    shell.audited.execute("INSERT INTO orders (id, status) VALUES (1, 'new'), (2, 'new')")
    xid = shell.transaction("UPDATE orders SET status = 'paid'")
    shell.audited.follow()
    follow = shell.audited.follow
    shell.audited.follow = lambda: None  # type: ignore[method-assign]
    shell.audited.execute("UPDATE orders SET status = 'sent' WHERE id = 1")
    output = shell.run("revert", "--xid", str(xid), "--apply", code=1)
    assert "public.orders 1 is no longer as this change left it" in output
    assert connection.execute("SELECT status FROM orders ORDER BY id").fetchall() == [("sent",), ("paid",)]
    shell.audited.follow = follow  # type: ignore[method-assign]


def test_revert_refuses_what_it_cannot_restore(shell: Shell) -> None:
    shell.audited.execute(
        "CREATE TABLE keyed (id int PRIMARY KEY, n int, t text)",
        "INSERT INTO keyed SELECT g, g FROM generate_series(1, 3) g",
    )
    shell.audited.follow()
    known = shell.transaction("UPDATE keyed SET n = 9 WHERE id = 1", "DELETE FROM keyed WHERE id = 2")
    shell.run("revert", "--xid", str(known), "--apply")
    rows = shell.audited.log.connection.execute("SELECT id, n FROM keyed ORDER BY id").fetchall()
    assert rows == [(1, 1), (2, 2), (3, 3)], "the previous change has the value that PostgreSQL did not send"
    shell.audited.trail.database.execute("DELETE FROM changes WHERE \"table\" = 'keyed' AND primary_key = '3'")
    unknown = shell.transaction("DELETE FROM keyed WHERE id = 3")
    assert "cannot be restored completely" in shell.run("revert", "--xid", str(unknown), code=1)
    emptied = shell.transaction("TRUNCATE keyed")
    assert "cannot revert TRUNCATE of public.keyed" in shell.run("revert", "--xid", str(emptied), code=1)
    for arguments, words in (
        ([], "no changes are selected"),
        (["--key", "1"], "--key needs --table"),
        (["--context", "x"], "not NAME=VALUE"),
        (["--xid", "1"], "no change matches these options"),
        (["--position", "nonsense"], "is not an LSN"),
    ):
        assert words in shell.run("revert", *arguments, code=2)


def test_revert_does_not_restore_masked_values(database: Database, destination: Database, tmp_path: Path) -> None:
    database.execute(TABLES)
    mask = {"public.orders.status": "redact"}
    with trailing(database, destination, tmp_path, mask=mask) as audited:
        store = audited.log.store.url
        config = write_config(tmp_path / "tailrace.toml", database, destination, store)
        config.write_text(config.read_text() + '\nmask = {"public.orders.status" = "redact"}')
        shell = Shell(audited, config)
        audited.execute("INSERT INTO orders (id, status) VALUES (1, 'secret')")
        xid = shell.transaction("DELETE FROM orders")
        assert "status is masked in the trail" in shell.run("revert", "--xid", str(xid), code=1)


@pytest.mark.parametrize("seed", range(3))
def test_reverting_random_transactions(shell: Shell, postgres: Postgres, seed: int) -> None:
    """If no conflict is reported, the database is as if the changes had never been made."""
    rng = random.Random(seed)
    work = list(_random_work(rng))
    xids = [shell.transaction(*statements) for statements in work]
    shell.audited.follow()
    undone = set()
    for number in rng.sample(range(len(work)), 25):
        shell.audited.follow()
        arguments = ["--config", str(shell.config), "revert", "--xid", str(xids[number]), "--apply"]
        result = CliRunner().invoke(main, arguments)
        if result.exit_code == 0:
            undone.add(number)
        else:
            assert "later change" in result.output or "no change matches these options" in result.output, result.output
    assert len(undone) > 5
    other = make_database(postgres)
    other.execute(TABLES)
    with other.connect() as connection:
        for number, statements in enumerate(work):
            if number not in undone:
                for statement in statements:
                    connection.execute(statement.encode())
        for name in ("orders", "lines", "bare"):
            expected = oracle.rows(connection, "public", name)
            assert oracle.rows(shell.audited.log.connection, "public", name) == expected, name
    drop_database(other)
    shell.audited.assert_matches()


def _random_work(rng: random.Random) -> Iterator[list[str]]:
    """Every statement sets a row to a new value, so that a later one always changes what an earlier one left."""
    there: set[int] = set()
    left: set[int] = set()
    for number in range(40):
        found = []
        for _ in range(rng.randint(1, 4)):
            key = rng.randint(1, 60)
            if key in left or rng.random() < 0.1:
                found.append(f"INSERT INTO bare VALUES ({number % 3}, 'twin')")
            elif key in there and rng.random() < 0.1:
                left.add(key)
                found.append(f"UPDATE orders SET id = {key + 1000}, amount = 'NaN' WHERE id = {key}")
            elif key not in there:
                there.add(key)
                found.append(
                    f"INSERT INTO orders (id, status, amount, tags) VALUES ({key}, 's{number}', {number}.5, '{{t}}')"
                )
            elif rng.random() < 0.6:
                details = f'{{"n": {number}.10}}'
                found.append(f"UPDATE orders SET status = 'u{number}', details = '{details}' WHERE id = {key}")
            else:
                there.remove(key)
                found.append(f"DELETE FROM orders WHERE id = {key}")
        yield found


def test_verify_reports_every_alteration(shell: Shell) -> None:
    trail = shell.audited.trail.database
    for number in range(30):
        shell.audited.execute(
            f"INSERT INTO orders (id, status, amount) VALUES ({number}, 's', 1.5)",
            f"UPDATE orders SET amount = amount + {number} WHERE id <= {number}",
        )
        if number % 7 == 0:
            shell.audited.follow()
    assert "the table matches the log" in shell.run("audit", "verify")
    tampered = [
        ("UPDATE changes SET after = after || '{\"amount\": 1}' WHERE", 3, "after differ"),
        ("UPDATE changes SET context = '{\"user\": 1}' WHERE", 4, "context differ"),
        ("UPDATE changes SET unchanged = '{amount}', after = after || '{\"amount\": 2}' WHERE", 5, "after differ"),
        ("DELETE FROM changes WHERE", 6, "in the log, but not in the trail"),
        ("UPDATE changes SET committed_at = committed_at + '1 s' WHERE", 7, "committed_at differ"),
        (
            'INSERT INTO changes SELECT gen_random_uuid(), database, schema, "table", operation, before, after,'
            " context, '99', committed_at, position, queued_at, created_at, xid, commit_position, 77"
            " FROM changes WHERE",
            *(8, "in the trail, but not in the log"),
        ),
    ]
    for number, (statement, key, words) in enumerate(tampered, 1):
        trail.execute(f"{statement} primary_key = '{key}' AND operation = 'INSERT'")
        output = shell.run("audit", "verify", code=1)
        assert words in output
        assert f"differs from the log in {number} of" in output


def test_verify_while_rows_are_added_and_expire(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verify, "_BATCH", planner.BatchLimits(1, 1 << 20))
    for number in range(4):
        shell.audited.execute(f"INSERT INTO orders (id) VALUES ({number})")
        shell.audited.follow()
    given = settings.load(shell.config, {})
    options, name = trail.audit_options(given, {})
    ((oldest,),) = shell.audited.trail.database.rows("SELECT min(committed_at) FROM changes WHERE primary_key = '3'")

    def meanwhile(_: verify.VerificationReport) -> None:
        shell.audited.execute("INSERT INTO orders (id) SELECT max(id) + 1 FROM orders")
        shell.audited.follow()
        TrailRecord(proved.connection, options.schema, name).set_retention(oldest)
        ChangesTable(proved.connection, *proved.table_name).drop_before(oldest, 100)

    with trail.connect(options, name) as proved:
        tally = verify.verify(proved, given.store, trail.common_settings(given, {}, name), None, meanwhile)
    assert (tally.changes, tally.differences) == (4, [])
    shell.audited.trail.database.execute(
        "UPDATE changes SET commit_position = commit_position * 2"
        " WHERE id = (SELECT id FROM changes ORDER BY commit_position DESC LIMIT 1)"
    )
    output = shell.run("audit", "verify", code=1)
    assert "in the log, but not in the trail" in output
    assert "in the trail, but not in the log" in output


def test_verify_with_unsent_values(shell: Shell) -> None:
    """Forged values are reported, even if the row marks them as unknown; values that no change contains are counted."""
    trail = shell.audited.trail.database
    database = shell.audited.source.name
    shell.audited.execute(
        "CREATE TABLE big (id int PRIMARY KEY, n int, body text)",
        "ALTER TABLE big ALTER body SET STORAGE EXTERNAL",
        "INSERT INTO big VALUES (1, 0, repeat('x', 9000)), (2, 0, repeat('y', 9000))",
        "UPDATE big SET n = 1",
    )
    shell.run("audit", "verify")
    update = "UPDATE changes SET {} WHERE operation = 'UPDATE' AND primary_key = '1'"
    for how, words in (
        ("unchanged = '{body}', after = after || '{\"body\": \"forged\"}'", "big 1: unchanged, after differ"),
        ("unchanged = '{n}'", "big 1: unchanged differ"),
        ('unchanged = NULL, after = after || \'{"body": "__tailrace_unchanged"}\'', "big 1: unchanged, after differ"),
    ):
        ((before,),) = trail.rows("SELECT after::text FROM changes WHERE operation = 'UPDATE' AND primary_key = '1'")
        trail.execute(update.format(how))
        assert words in shell.run("audit", "verify", code=1)
        trail.execute(update.format(f"unchanged = NULL, after = $${before}$$"))
    trail.execute(update.format("unchanged = '{body}', after = after || '{\"body\": \"__tailrace_unchanged\"}'"))
    assert "1 values were not sent by PostgreSQL" in shell.run("audit", "verify")
    trail.execute(
        'INSERT INTO changes (id, database, schema, "table", operation, committed_at, position, queued_at)'
        f" VALUES (gen_random_uuid(), '{database}', 'public', 'big', 'DELETE', now(), 1, now()),"
        f" (gen_random_uuid(), '{database}', 'public', 'big', 'DELETE', now(), (1::bigint << 62), now())"
    )
    output = shell.run("audit", "verify", code=1)
    assert "1 rows were written before Tailrace" in output
    assert "40000000/0:0  public.big: in the trail, but not in the log" in output


def test_verify_after_erasing_values(shell: Shell) -> None:
    trail = shell.audited.trail.database
    shell.audited.execute(
        "INSERT INTO orders (id, status, amount) VALUES (1, 'secret', 1), (2, 'other', 2)",
        "UPDATE orders SET status = 'secret too' WHERE id = 1",
        "UPDATE orders SET id = 5 WHERE id = 1",
    )
    shell.run("audit", "erase", "orders", "5", "--column", "status", "--yes")
    assert trail.rows("SELECT count(*) FROM changes WHERE changes::text LIKE '%secret%'") == [(0,)]
    assert trail.rows("SELECT after ->> 'status' FROM changes WHERE primary_key = '2'") == [("other",)]
    output = shell.run("audit", "verify")
    assert "2 rows have erased values" in output
    shell.audited.execute("UPDATE orders SET amount = 3 WHERE id = 5")
    shell.run("audit", "verify")
    xid = shell.transaction("DELETE FROM orders WHERE id = 5")
    shell.run("audit", "erase", "orders", "5", "--column", "status", "--yes")
    assert "status was erased from the trail" in shell.run("revert", "--xid", str(xid), "--apply", code=1)
    assert shell.audited.log.connection.execute("SELECT count(*) FROM orders WHERE id = 5").fetchone() == (0,)
    trail.execute("UPDATE changes SET after = after || '{\"amount\": 9}' WHERE primary_key = '5'")
    shell.run("audit", "verify", code=1)
    for arguments, words in (
        (["orders", "5", "--column", "id"], "is part of the key"),
        (["orders", "5", "--column", "nothing"], "never had nothing"),
        (["orders", "77"], "no changes of"),
    ):
        assert words in shell.run("audit", "erase", *arguments, "--yes", code=2)


def test_erasing_covers_all_keys_of_a_row(shell: Shell) -> None:
    """Other rows that had one of the keys remain; unknown values are not recovered later."""
    trail = shell.audited.trail.database
    shell.audited.execute(
        "CREATE TABLE people (id int PRIMARY KEY, name text, body text)",
        "ALTER TABLE people ALTER body SET STORAGE EXTERNAL",
        "INSERT INTO people VALUES (2, 'other', 'other'), (7, 'seven', repeat('secret', 2000))",
        "DELETE FROM people WHERE id = 2",
        "INSERT INTO people VALUES (1, 'secret', repeat('secret', 2000))",
        "UPDATE people SET id = 2 WHERE id = 1",
        "UPDATE people SET id = 3, name = 'secret too' WHERE id = 2",
        "UPDATE people SET name = 'secret again' WHERE id = 3",
        "DELETE FROM people WHERE id = 3",
        "INSERT INTO people VALUES (3, 'third', 'third')",
    )
    history = [json.loads(line) for line in shell.run("history", "people", "1", "--json").splitlines()]
    assert [line["row"] and line["row"]["id"] for line in history] == [1, 2, 3, 3, None]
    shell.audited.execute("UPDATE people SET name = 'later' WHERE id = 7")
    shell.audited.follow()
    trail.execute(
        "UPDATE changes SET unchanged = '{body}', after = after || '{\"body\": \"__tailrace_unchanged\"}'"
        " WHERE after ->> 'name' = 'later'"
    )
    for key in ("1", "7"):
        shell.run("audit", "erase", "people", key, "--yes")
    assert trail.rows("SELECT count(*) FROM changes WHERE changes::text LIKE '%secret%'") == [(0,)]
    left = trail.rows("SELECT after ->> 'name' FROM changes WHERE after ->> 'name' !~ 'erased' ORDER BY 1")
    assert left == [("other",), ("third",)]
    assert trail.rows("SELECT count(*) FROM changes WHERE unchanged IS NOT NULL") == [(0,)], (
        "an erased value could still be recovered"
    )
    shell.run("audit", "verify")


def test_verify_after_log_retention(shell: Shell) -> None:
    trail = shell.audited.trail.database
    for number in range(6):
        shell.audited.execute(f"INSERT INTO orders (id, status) VALUES ({number}, 'a')")
        shell.audited.follow()
    removed = retain(shell.audited.log.store, RetentionLimits(max_bytes=12_000), force=True).remove
    assert removed
    output = shell.run("audit", "verify")
    assert "rows are older than the retained log" in output
    trail.execute("UPDATE changes SET after = '{}' WHERE primary_key = '5'")
    assert "orders 5: after differ" in shell.run("audit", "verify", code=1)


def test_verify_reports_a_gap(database: Database, destination: Database, tmp_path: Path) -> None:
    """The slot was dropped and the gap accepted: the trail has the changes before and after, and reports the gap."""
    store = settings.StoreSettings((tmp_path / "store").as_uri())
    database.execute("CREATE TABLE t (id int PRIMARY KEY); CREATE PUBLICATION tailrace FOR ALL TABLES")

    def capture(*, accept_gap: bool = False) -> None:
        Capture(configured(database), Store.open(store.url), until="current", accept_gap=accept_gap).run()

    with DeliveryDriver(AuditTable(destination), store, name="audit").stepper() as first:
        capture()
        database.execute("INSERT INTO t VALUES (1)")
        capture()
        first.deliver(first.ahead().end)
        database.execute("INSERT INTO t VALUES (2)")
        capture()
        database.execute("SELECT pg_drop_replication_slot('tailrace'); INSERT INTO t VALUES (3)")
        capture(accept_gap=True)
        database.execute("INSERT INTO t VALUES (4)")
        capture()
    with DeliveryDriver(AuditTable(destination), store, name="audit").stepper() as stepper:
        while (ahead := stepper.ahead()).slices:
            stepper.deliver(ahead.end)
    assert destination.rows("SELECT primary_key FROM changes ORDER BY position") == [("1",), ("2",), ("4",)]
    assert destination.rows("SELECT lost_from < lost_until FROM tailrace.gaps") == [(True,)]
    config = write_config(tmp_path / "tailrace.toml", database, destination, store.url)
    result = CliRunner().invoke(main, ["--config", str(config), "audit", "verify"])
    assert result.exit_code == 0, result.output
    assert "were lost: neither the log nor the table has them" in result.output


def test_a_new_log_after_undelivered_changes_were_lost(
    database: Database, destination: Database, tmp_path: Path
) -> None:
    """The old log is lost with undelivered changes: the trail records a gap, and a sink with tables stops."""
    database.execute("CREATE TABLE t (id int PRIMARY KEY); CREATE PUBLICATION tailrace FOR ALL TABLES")
    old, new = (settings.StoreSettings((tmp_path / name).as_uri()) for name in ("old", "new"))

    def insert(number: int, store: settings.StoreSettings) -> None:
        database.execute(f"INSERT INTO t VALUES ({number})")
        Capture(configured(database), Store.open(store.url), until="current").run()

    def steppers(store: settings.StoreSettings) -> list[DrivenStepper]:
        common = SinkSettings(type="postgres", name="replica", start="earliest", route="copy.{table}")
        audit = {**AuditTable(destination).settings(), "name": "audit"}
        audited = sinks.from_settings(settings.Settings(store=store, sinks=(audit,)), {})
        return [DrivenStepper(each, store) for each in (*audited, ConfiguredSink(common, sink_to(destination)))]

    insert(0, old)
    insert(1, old)
    for stepper in steppers(old):
        stepper.open()
        stepper.deliver(stepper.ahead().end)
        stepper.close()
    insert(2, old)
    insert(3, new)
    audited, replica = steppers(new)
    audited.open()
    audited.deliver(audited.ahead().end)
    audited.close()
    assert destination.rows("SELECT primary_key FROM changes ORDER BY position") == [("1",), ("3",)]
    assert destination.rows("SELECT sink FROM tailrace.gaps") == [("audit",)]
    with pytest.raises(GapError, match="the log begins at"):
        replica.open()
    replica.close()


def test_commands_without_an_audit_sink(tmp_path: Path) -> None:
    config = tmp_path / "tailrace.toml"
    config.write_text('[source]\nurl = "postgresql://x/y"\n[store]\nurl = "file:///tmp/none"')
    result: Any = CliRunner().invoke(main, ["--config", str(config), "history", "t", "1"])
    assert result.exit_code == 2
    assert "no sink of the type audit" in result.output
