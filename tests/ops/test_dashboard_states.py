"""The dashboard when something is wrong, asks for the token, or has nothing to show."""

from __future__ import annotations

import threading
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from tests.fixtures.browser import Page
from tests.fixtures.postgres import Database
from tests.ops.accessibility import accessibility_faults
from tests.ops.dashboard_scene import DashboardScene, picture

from tailrace.capture.postgres.uncaptured import UncapturedTable
from tailrace.delivery import control, dead_letters
from tailrace.delivery.status import Condition, SinkStatus
from tailrace.embedded.process import wait_until
from tailrace.log.change_search import search_back
from tailrace.log.reader import LogReader
from tailrace.ops import explorer
from tailrace.settings import Secret


@pytest.fixture
def scene(database: Database, tmp_path: Path) -> DashboardScene:
    return DashboardScene(database, tmp_path / "store")


def _sink(name: str, type_: str, state: Condition, **known: Any) -> SinkStatus:
    return replace(SinkStatus.initial(name, type_, state), **known)


def _row(page: Page, name: str) -> str:
    """The text of a table's row whose heading begins with a name, and of the note below it."""
    return str(
        page.run(
            f"""(() => {{
                const rows = [...document.querySelectorAll("tbody tr")];
                const row = rows.find((each) => each.cells[0].innerText.startsWith("{name}"));
                const note = row.nextElementSibling;
                return row.innerText + (note?.classList.contains("note") && !note.hidden ? note.innerText : "");
            }})()"""
        )
    )


def test_what_is_wrong_is_told_where_an_operator_looks(scene: DashboardScene, page: Page) -> None:
    scene.capture("CREATE TABLE orders (id int PRIMARY KEY)", "INSERT INTO orders VALUES (1)", snapshot=["orders"])
    silent_since = datetime.now(UTC) - timedelta(seconds=100)
    scene.more_sinks = [
        _sink("lake", "iceberg", "loading", load_rows=1200, load_total_rows=5000, load_seconds_left=12.0),
        _sink("events", "kafka", "failed", last_error="topic orders was deleted", last_error_hint="create it"),
        _sink("search", "opensearch", "retrying", last_error="connection refused", last_error_hint="it is retried"),
        _sink("hanging", "mysql", "running", updated_at=silent_since, changes_per_second=4.0),
        _sink("unborn", "nats", "new"),
    ]
    scene.captured_more = {
        "tables_copying": 2,
        "rows_copied": 300,
        "rows_to_copy": 900,
        "copy_seconds_left": 6.0,
        "tables_captured": 1,
        "uncaptured": (
            UncapturedTable(1, "public", "secret", "it was left out", "", is_left_out=True),
            UncapturedTable(2, "public", "keyless", "it has no key", "ALTER TABLE keyless ADD PRIMARY KEY (id)"),
        ),
    }
    with scene.serving() as url:
        page.resize(1280, 900)
        page.open(url)
        page.wait_for("needs attention")
        page.wait_for("hanging")
        faults = page.run("document.getElementById('faults').innerText")
        assert "sink events is failed: topic orders was deleted: create it" in faults
        assert "sink search is retrying" in faults
        assert "sink hanging has no status" in faults
        warnings = page.run("document.getElementById('warnings').innerText")
        assert "public.keyless is not captured: it has no key. ALTER TABLE keyless ADD PRIMARY KEY (id)" in warnings
        assert "secret" not in warnings, "somebody decided that"
        assert "300 of 900 rows, about 6.0 s left" in page.text
        assert "Loading 1,200 of 5,000 rows, about 12.0 s left." in _row(page, "lake")
        assert "topic orders was deleted. Hint: create it." in _row(page, "events")
        assert "Resume" in _row(page, "events"), "a failed sink retries when it is resumed"
        assert "Pause" in _row(page, "search")
        assert "no status" in _row(page, "hanging")
        assert "4.0/s" not in _row(page, "hanging"), "nobody knows its rate"
        assert "new" in _row(page, "unborn")
        assert accessibility_faults(page) == []
        picture(page, "faults")
        # A position that is selected, to be copied, stays selected while the texts are refreshed.
        page.run("getSelection().selectAllChildren(document.querySelector('.cards dd'))")
        selected = page.run("getSelection().toString()")
        scene.captured_more |= {"rows_copied": 301}
        page.wait_for("301 of 900 rows")
        assert page.run("getSelection().toString()") == selected != ""

        page.press("2")
        page.wait_for("public.secret")
        assert "not captured" in _row(page, "public.keyless")
        assert "ALTER TABLE keyless" in _row(page, "public.keyless")
        assert "left out" in _row(page, "public.secret")
        page.wait_for("1 captured")
        page.run("document.querySelector('tbody a').focus()")
        page.run("document.querySelector('input[type=search]').dispatchEvent(new Event('input'))")  # it draws anew
        assert page.run("document.activeElement.innerText") == "public.keyless", "the focus stays"
        picture(page, "left-out")
        page.press("/")
        page.wait("document.activeElement.type === 'search'")
        page.send("Input.insertText", text="SECRET")
        page.wait("document.querySelectorAll('#view tbody tr').length === 1")
        page.send("Input.insertText", text="x")
        page.wait_for("No table has this name")
        assert accessibility_faults(page) == []
        page.resize(390, 844, is_dark=True)
        page.open(f"{url}/#/overview")
        page.wait_for("hanging")
        assert page.run("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
        assert accessibility_faults(page) == []
        picture(page, "narrow-faults")
    page.wait_for("not responding")
    page.wait_for("last update")


def test_changes_are_found_by_time_and_transaction(scene: DashboardScene, page: Page) -> None:
    scene.capture("CREATE TABLE orders (id int PRIMARY KEY, note text)", "INSERT INTO orders VALUES (1, 'first')")
    changes = scene.capture(
        "SELECT pg_sleep(1.1)",
        "BEGIN; INSERT INTO orders VALUES (2, NULL), (3, ''); UPDATE orders SET note = 'x' WHERE id = 1; COMMIT",
    )
    last = changes[-1]
    page.send("Emulation.setTimezoneOverride", timezoneId="Asia/Kolkata")
    with scene.serving() as url:
        page.resize(1280, 900)
        page.open(f"{url}/#/changes")
        page.wait("document.querySelectorAll('.changes > li').length === 4")
        page.click("", ".changes > li:nth-child(3)")
        page.wait("document.querySelector('.compare')")
        assert "NULL" in page.run("document.querySelector('.compare').innerText")
        page.click("", ".changes > li:nth-child(3)")
        page.wait("!document.querySelector('.compare').checkVisibility()")
        page.click("", ".changes > li:nth-child(2)")
        page.wait_for("empty text")
        page.click("The whole transaction", ".changes > li:nth-child(2)")
        page.wait("document.querySelectorAll('.changes > li').length === 3")
        assert page.run("document.querySelector('input[placeholder*=xid]').value") == str(last.position.commit_lsn)

        # Times are the reader's own, to the second: the first insert is at least one second older.
        page.open(f"{url}/#/changes")
        page.wait("document.querySelectorAll('.changes > li').length === 4")
        shown = page.run("document.querySelector('.changes time').innerText")
        assert shown == str(last.committed_at.astimezone(ZoneInfo("Asia/Kolkata")))[:19]
        page.wait_for("Times are in Asia/")
        at = int(last.committed_at.timestamp())
        local = f"new Date({at} * 1000 - new Date({at} * 1000).getTimezoneOffset() * 60000).toISOString().slice(0, 19)"
        page.run(f"document.querySelectorAll('input[type=datetime-local]')[0].value = {local}")
        page.click("Search")
        page.wait("document.querySelectorAll('.changes > li').length === 3")
        page.run("document.querySelectorAll('input[type=datetime-local]')[0].value = ''")
        page.run(f"document.querySelectorAll('input[type=datetime-local]')[1].value = {local}")
        page.click("Search")
        page.wait("document.querySelectorAll('.changes > li').length === 1")
        assert "first" in page.text
        page.click("Reset")
        page.wait("document.querySelectorAll('.changes > li').length === 4")

        page.fill("input[placeholder*=xid]", str(last.xid))
        page.press("Enter")
        page.wait("document.querySelectorAll('.changes > li').length === 3")
        page.fill("input[placeholder*=xid]", "nonsense")
        page.press("Enter")
        page.wait_for("is not a transaction")
        page.wait_for("give its xid")
        picture(page, "bad-search")
        assert accessibility_faults(page) == []
        page.open(f"{url}/#/changes?table=public.nothing")
        page.wait_for("Nothing found")
        page.open(f"{url}/#/row?table=public.orders&key=77")
        page.wait_for("The log has no change of this row")
        page.open(f"{url}/#/dead-letters")
        page.wait_for("No dead letters")


def test_a_search_goes_on_by_itself_until_it_is_stopped(
    scene: DashboardScene, page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = scene.capture("CREATE TABLE orders (id int PRIMARY KEY)", "INSERT INTO orders VALUES (1)")[0]
    for number in range(2, 6):
        scene.capture(f"INSERT INTO orders VALUES ({number})")
    assert len(LogReader(scene.store).list()) > 3
    parts = threading.Semaphore(1)

    def search_part(reader: Any, criteria: Any, cursor: Any, limits: Any) -> Any:
        parts.acquire(timeout=60)
        return search_back(reader, criteria, cursor, replace(limits, seconds=0.0))

    monkeypatch.setattr(explorer, "search_back", search_part)
    with scene.serving() as url:
        page.resize(1280, 900)
        page.open(f"{url}/#/changes?transaction={first.xid}")
        page.wait_for("segments are left")
        assert "Nothing found so far; searched back to" in page.text
        assert page.run("document.querySelector('progress').value") == 0
        assert accessibility_faults(page) == []
        picture(page, "searching")
        page.run("[...document.querySelectorAll('button')].find((each) => each.innerText === 'Stop').focus()")
        page.press("Enter")
        page.wait("document.activeElement.innerText === 'Go on'")
        parts.release(100)
        page.press("Enter")
        page.wait_for("1 change. That is all that the log has")
        page.open(f"{url}/#/row?table=public.orders&key=1")
        page.wait_for("1 version: all that the log has")


def test_the_token_is_asked_for_when_it_is_needed(scene: DashboardScene, page: Page) -> None:
    changes = scene.capture(
        "CREATE TABLE orders (id int PRIMARY KEY)", "INSERT INTO orders SELECT generate_series(1, 3)"
    )
    for change in changes[:2]:
        scene.add_dead_letter(change)
    with scene.serving(token=Secret("s3cret")) as url:
        page.resize(1280, 900)
        page.open(url)
        page.wait_for("replica")  # on loopback, the status needs none
        page.click("Pause")
        page.wait("document.querySelector('dialog').open")
        assert page.run("document.activeElement.id") == "token"
        page.press("Escape")
        page.wait("!document.querySelector('dialog').open")
        assert not control.load(scene.store, "replica").is_paused
        page.wait("document.activeElement.innerText === 'Pause'")
        page.press("Enter")
        page.wait("document.querySelector('dialog').open")
        page.fill("#token", "s3cret")
        page.press("Enter")
        assert wait_until(lambda: control.load(scene.store, "replica").is_paused, 10)
        page.wait_for("stays paused until it is resumed")
        page.click("Sign out")
        page.press("3")
        page.wait_for("Rows need the token")
        assert "orders" not in page.text
        page.click("Sign in", "#view")
        page.fill("#token", "s3cret")
        page.press("Enter")
        page.wait("document.querySelectorAll('.changes > li').length === 3")
        page.run("document.activeElement.blur()")
        page.press("5")
        page.wait_for("Replay all 2 of replica")
        page.click("Replay all")
        page.wait_for("delivers 2 dead letters again")
        assert all(letter.is_replay_requested for letter in dead_letters.load_all(scene.store))
        page.wait("!document.body.innerText.includes('Replay all')")
