"""The dashboard in a real browser: it shows the status, searches, shows a row's life, pauses, replays and signs in.

`SCREENSHOTS=directory` keeps pictures of each view.
"""

from __future__ import annotations

import time
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from tests.fixtures.browser import Page
from tests.fixtures.postgres import Database
from tests.ops.accessibility import accessibility_faults
from tests.ops.dashboard_scene import DashboardScene, picture

from tailrace.delivery import control, dead_letters
from tailrace.embedded.process import wait_until
from tailrace.log.reader import LogReader
from tailrace.ops.metric_history import INTERVAL_S
from tailrace.settings import Secret
from tailrace.verify.record import VerificationRecord

ODD = "<img src=x onerror=alert(1)>"
TABLES = (
    "CREATE TABLE orders (id bigint PRIMARY KEY, state text, total numeric, note text, placed timestamptz)",
    "CREATE TABLE customers (id int PRIMARY KEY, name text, email text)",
    "CREATE TABLE lines (order_id bigint, line int, article text, PRIMARY KEY (order_id, line))",
    "INSERT INTO customers SELECT g, 'Customer ' || g, g || '@example.com' FROM generate_series(1, 30) g",
)


@pytest.fixture
def scene(database: Database, tmp_path: Path) -> DashboardScene:
    scene = DashboardScene(database, tmp_path / "store")
    scene.capture(
        *TABLES,
        f"INSERT INTO orders VALUES (9007199254740993, 'new', 12.50, '{ODD}', now())",
        "INSERT INTO orders SELECT g, 'new', g * 3.5, NULL, now() FROM generate_series(1, 12) g",
        "INSERT INTO lines SELECT 1, g, 'Article ' || g FROM generate_series(1, 3) g",
        snapshot=["customers"],
    )
    changes = scene.capture(
        """BEGIN; SELECT pg_logical_emit_message(true, '_bemi', '{"user": "ada", "request": "checkout"}');
           UPDATE orders SET state = 'paid' WHERE id = 9007199254740993; COMMIT""",
        "UPDATE orders SET total = 99.90 WHERE id = 9007199254740993",
        "DELETE FROM orders WHERE id = 3",
        "UPDATE lines SET article = 'Lamp' WHERE order_id = 1 AND line = 2",
    )
    scene.add_dead_letter(next(change for change in changes if change.table == "orders"))
    at = changes[0].position.commit_lsn
    VerificationRecord("replica", datetime.now(UTC), at, 40, 2, 3, 0, seconds=1.0).save(scene.store)
    now, overview = time.time(), scene.overview()
    for sample in range(170):
        scene.delivered += (sample * 37) % 91 if sample % 60 > 8 else 0
        sink = replace(overview.sinks[0], changes=scene.delivered, steps=scene.delivered, lag_bytes=0, lag_seconds=0.0)
        scene.history.add(replace(overview, sinks=[sink]), now - (170 - sample) * INTERVAL_S)
    return scene


def _overflow(page: Page) -> int:
    """By how many pixels the page is wider than its window."""
    return int(page.run("document.documentElement.scrollWidth - document.documentElement.clientWidth"))


def _legend(page: Page, chart: str) -> dict[str, str]:
    """The newest values of a chart, by the name of the line."""
    return dict(
        page.run(
            f"""[...[...document.querySelectorAll("figure")]
                .find((each) => each.querySelector("strong").innerText === "{chart}").querySelectorAll(".u-series")]
                .map((row) => [...row.cells].map((cell) => cell.innerText.trim()))"""
        )
    )


def test_an_operator_looks_around(scene: DashboardScene, page: Page) -> None:
    page.resize(1280, 900)
    with scene.serving() as url:
        page.open(url)
        page.wait_for("healthy")
        page.wait_for("Throughput")
        page.wait("document.querySelectorAll('.uplot canvas').length === 5")
        assert "replica" in page.text
        page.wait_for("2 of 40 rows differ")
        assert _legend(page, "Throughput") == {"Time": "now", "capture": "0/s", "replica": "13/s"}
        assert _legend(page, "Lag") == {"Time": "now", "replica": "0 ms"}
        assert _legend(page, "Lag in WAL") == {"Time": "now", "replica": "0 B"}
        assert _legend(page, "Commit to delivery") == {"Time": "now", "replica": "120 ms"}
        assert _legend(page, "Seal to delivery") == {"Time": "now", "replica": "50 ms"}
        picture(page, "overview")
        page.click("24 h")
        page.wait("performance.getEntriesByType('resource').some((each) => each.name.includes('seconds=86400'))")
        assert page.run("document.querySelector('[aria-pressed=true]').innerText") == "24 h"
        page.click("15 min")

        # Pause, with the keyboard; the button stays where the focus is.
        page.run("document.querySelector('tbody button').focus()")
        page.press("Enter")
        assert wait_until(lambda: control.load(scene.store, "replica").is_paused, 10)
        page.wait("document.activeElement.innerText === 'Resume'")
        page.wait_for("paused")
        picture(page, "paused")
        page.press("Enter")
        assert wait_until(lambda: not control.load(scene.store, "replica").is_paused, 10)

        page.run("document.activeElement.blur()")
        page.press("2")
        page.wait_for("public.customers")
        page.wait("document.querySelector('#view table')")
        row = "[...document.querySelectorAll('tbody tr')].find((row) => row.innerText.includes('customers'))"
        assert page.run(f"{row}.cells[2].innerText") == "30"
        picture(page, "tables")

        # From a table to its changes, to one change, to the row's life.
        page.click("public.orders")
        page.wait_for("changes.")
        assert page.run("document.querySelectorAll('.changes > li').length") == 16
        page.click("", ".changes > li:nth-child(3)")
        page.wait_for("ada")
        page.wait("document.querySelector('.differs')")
        assert page.run("[...document.querySelectorAll('.differs td')].map((c) => c.innerText.trim())") == [
            "new",
            "paid",
        ]
        picture(page, "change")
        page.click("This row's life")
        page.wait_for("version 3 of 3")
        assert "9007199254740993" in page.run("document.querySelector('.compare').innerText"), "all its digits"
        assert ODD in page.text
        assert not page.run("document.querySelector('#view img')"), "data is never HTML"
        page.run("document.querySelector('input[type=range]').focus()")
        page.press("ArrowLeft")
        page.wait_for("version 2 of 3")
        assert "12.50" in page.run("document.querySelector('.compare').innerText")
        # The slider's places are times: the row was inserted seconds before both updates.
        place = "Number(document.querySelector('input[type=range]').value)"
        assert page.run(place) > 5000
        slide = "(s) => { s.value = 4000; s.dispatchEvent(new Event('input')); }"
        page.run(f"({slide})(document.querySelector('input[type=range]'))")
        page.wait_for("version 1 of 3")
        page.press("ArrowRight")
        page.wait_for("version 2 of 3")
        picture(page, "row")

        # All changes, a page after the other: none is lost, and none comes twice.
        page.open(f"{url}/#/changes")
        page.wait("document.querySelectorAll('.changes > li').length === 50")
        page.click("Go on")
        page.wait_for("That is all that the log has")
        shown = page.run("[...document.querySelectorAll('.changes > li .what')].map((each) => each.innerText.trim())")
        assert len(shown) == sum(1 for _ in LogReader(scene.store).changes())
        assert {f"public.customers id={number}" for number in range(1, 31)} <= set(shown)

        # A key of two columns, typed into the filter.
        page.open(f"{url}/#/changes")
        page.wait("document.querySelectorAll('datalist option').length === 3")
        page.fill("input[name=table]", "public.lines")
        page.press("Tab")
        page.wait("document.querySelectorAll('input[name=key]').length === 2")
        page.fill("input[name=key]", "1")
        page.press("Tab")
        page.send("Input.insertText", text="2")
        page.press("Enter")
        page.wait("document.querySelectorAll('.changes > li').length === 2")
        assert "Lamp" in page.text

        page.press("Escape")
        page.run("document.activeElement.blur()")
        page.press("5")
        page.wait_for("invalid input value for enum")
        picture(page, "dead-letters")
        page.click("Replay", "tbody")
        page.wait_for("replay requested")
        (letter,) = dead_letters.load_all(scene.store)
        assert letter.is_replay_requested

        # Dark, and on a telephone: nothing is wider than the window.
        for name in ("overview", "tables", "changes", "row?table=public.orders&key=9007199254740993", "dead-letters"):
            page.resize(1280, 900, is_dark=True)
            page.open(f"{url}/#/{name}")
            page.wait("document.querySelector('#view .card') && !document.body.innerText.includes('Searching')")
            page.wait("!document.querySelector('#view .empty')")
            assert accessibility_faults(page) == [], name
            picture(page, f"dark-{name.split('?')[0]}")
            page.resize(390, 844)
            assert _overflow(page) == 0, name
            assert accessibility_faults(page) == [], name
            picture(page, f"narrow-{name.split('?')[0]}")


def test_signing_in(scene: DashboardScene, page: Page) -> None:
    page.resize(1280, 800)
    with scene.serving(host="0.0.0.0", token=Secret("s3cret")) as url:
        page.open(url.replace("0.0.0.0", "127.0.0.1"))
        page.wait("document.querySelector('dialog').open")
        assert "replica" not in page.text
        picture(page, "sign-in")
        page.fill("#token", "wrong")
        page.press("Enter")
        page.wait_for("does not accept this token")
        page.fill("#token", "s3cret")
        page.press("Enter")
        page.wait_for("replica")
        assert not page.run("document.querySelector('dialog').open")
        page.click("Sign out")
        page.wait("document.querySelector('dialog').open")
        assert "replica" not in page.text
        page.open(url.replace("0.0.0.0", "127.0.0.1") + "/#token=s3cret")
        page.run("location.reload()")
        page.wait_for("replica")
        assert "s3cret" not in page.run("location.href")
