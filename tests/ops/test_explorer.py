"""What the dashboard asks, on a real log and a real server: rows, access to them, and how far a search got."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.fixtures.postgres import Database
from tests.ops.dashboard_scene import DashboardScene

from tailrace.delivery import dead_letters
from tailrace.settings import Secret


@pytest.fixture
def scene(database: Database, tmp_path: Path) -> DashboardScene:
    scene = DashboardScene(database, tmp_path / "store")
    scene.capture(
        "CREATE TABLE t (id bigint PRIMARY KEY, n numeric, body text)",
        'CREATE TABLE "Odd.Name" (a int, b text, PRIMARY KEY (a, b))',
        "INSERT INTO t VALUES (1, 12345678901234567890.10, repeat('x', 5000))",
        "INSERT INTO \"Odd.Name\" VALUES (1, 'x, y')",
    )
    return scene


def _pages(client: httpx.Client, path: str, **given: Any) -> Iterator[dict[str, Any]]:
    while True:
        answer = client.get(path, params=given)
        assert answer.status_code == 200, answer.text
        yield answer.json()
        if answer.json()["cursor"] is None:
            return
        given |= {"cursor": answer.json()["cursor"]} | ({"key": answer.json()["key"]} if "key" in given else {})


def test_changes_and_the_versions_of_a_row(scene: DashboardScene) -> None:
    # TOASTed and not touched: PostgreSQL does not send `body` again.
    scene.source.execute("ALTER TABLE t ALTER body SET STORAGE EXTERNAL")
    changes = scene.capture(
        "UPDATE t SET body = repeat('y', 9000)",
        """BEGIN; SELECT pg_logical_emit_message(true, '_bemi', '{"user": "ada"}'); UPDATE t SET n = 2; COMMIT""",
        "UPDATE t SET id = 2",
        "INSERT INTO t VALUES (1, 0, '')",
        "UPDATE t SET n = NULL WHERE id = 2",
        "TRUNCATE t",
    )
    with scene.serving() as url, httpx.Client(base_url=url) as client:
        (answer,) = _pages(client, "/changes")
        assert [c["position"] for c in answer["changes"]] == [str(c.position) for c in reversed(changes)]
        first = next(
            c for c in answer["changes"] if c["operation"] == "INSERT" and c["table"] == "public.t" and c["after"][2][1]
        )
        assert first["after"][:2] == [["id", "1"], ["n", "12345678901234567890.10"]], "PostgreSQL's digits"
        assert first["after"][2][1].endswith("… (5,000 characters)")
        with_context = [c["context"] for c in answer["changes"] if c["context"]]
        assert with_context == ['{"user": "ada"}']
        few = [c for page in _pages(client, "/changes", limit=1) for c in page["changes"]]
        assert few == answer["changes"]
        (odd,) = client.get("/changes", params={"table": 'public."Odd.Name"', "key": ["1", "x, y"]}).json()["changes"]
        assert odd["table"] == "public.Odd.Name"
        transaction = client.get("/changes", params={"transaction": odd["commit_lsn"]}).json()
        assert [c["position"] for c in transaction["changes"]] == [odd["position"]]

        # The row 2 was the row 1, and is not the row 1 that came later.
        versions = [v for page in _pages(client, "/row", table="t", key=["2"]) for v in page["versions"]]
        assert [v["operation"] for v in versions] == ["TRUNCATE", "UPDATE", "UPDATE", "UPDATE", "UPDATE", "INSERT"]
        assert versions[0]["row"] is None
        assert dict(versions[1]["row"])["n"] is None
        later = [v for page in _pages(client, "/row", table="t", key=["1"], limit=1) for v in page["versions"]]
        assert later[1]["operation"] == "INSERT"
        before = client.get(
            "/row", params={"table": "t", "key": "1", "before": versions[3]["position"], "limit": 9}
        ).json()
        assert [v["position"] for v in before["versions"]] == [v["position"] for v in versions[4:]]
        whole = client.get("/row", params={"table": "t", "key": "1", "before": versions[2]["position"]}).json()
        (update,) = [v for v in whole["versions"] if v["position"] == versions[3]["position"]]
        assert update["unchanged"] == ["body"]
        assert update["unknown"] == []
        assert dict(update["row"])["body"].startswith("yyy"), "taken from the version before"

        for given, code in (
            ({"key": "1"}, 400),
            ({"table": "a.b.c"}, 400),
            ({"since": "yesterday"}, 400),
            ({"cursor": "x"}, 400),
            ({"transaction": "x"}, 400),
            ({"limit": "0"}, 400),
            ({"limit": "100000"}, 400),
        ):
            assert client.get("/changes", params=given).status_code == code, given
        assert client.get("/row").status_code == 400


def test_tables_have_states_rows_and_last_changes(scene: DashboardScene) -> None:
    with scene.serving() as url, httpx.Client(base_url=url, timeout=30) as client:
        tables = {table["table"]: table for table in client.get("/tables").json()["tables"]}
    assert tables["t"]["state"] == "captured"
    assert tables["t"]["rows"] is None, "nobody counted them"
    assert tables["t"]["last_change_at"] is not None
    assert tables["Odd.Name"]["name"] == 'public."Odd.Name"'
    assert tables["Odd.Name"]["key"] == ["a", "b"]


def test_rows_need_the_token_wherever_one_is_set(scene: DashboardScene) -> None:
    rows = ("/changes", "/row?table=t&key=1", "/dead-letters")
    right = {"Authorization": "Bearer s3cret"}
    with scene.serving(token=Secret("s3cret")) as url, httpx.Client(base_url=url, timeout=30) as client:
        assert client.get("/status").status_code == 200, "on loopback, names may be read"
        for path in rows:
            assert client.get(path).status_code == 401, path
            assert client.head(path).status_code in (401, 405), path
            assert client.get(path, headers={"Authorization": "Bearer wrong"}).status_code == 401, path
            assert client.get(path, headers=right).status_code == 200, path
            assert client.get(path, headers=right | {"Host": "rebound.example"}).status_code == 403, path
    with scene.serving(explorer=False) as url, httpx.Client(base_url=url) as client:
        for path in (*rows, "/tables"):
            answer = client.get(path)
            assert answer.status_code == 404
            assert "explorer" in answer.json()["error"]


def test_a_dead_letter_is_replayed_on_request(scene: DashboardScene) -> None:
    change = scene.capture("UPDATE t SET n = 3")[-1]
    scene.add_dead_letter(change)
    with scene.serving(token=Secret("s3cret")) as url, httpx.Client(base_url=url) as client:
        right = {"Authorization": "Bearer s3cret"}
        (letter,) = client.get("/dead-letters", headers=right).json()["dead_letters"]
        assert (letter["sink"], letter["can_replay"], letter["is_replay_requested"]) == ("replica", True, False)
        given = {"position": letter["position"]}
        assert client.post("/sinks/replica/replay", params=given).status_code == 401
        cross = right | {"Sec-Fetch-Site": "cross-site"}
        assert client.post("/sinks/replica/replay", params=given, headers=cross).status_code == 403
        assert client.post("/sinks/other/replay", params=given, headers=right).status_code == 404
        assert client.post("/sinks/replica/replay", headers=right).status_code == 400
        assert client.post("/sinks/replica/replay", params={"position": "0/1:1"}, headers=right).status_code == 404
        assert not next(dead_letters.load_all(scene.store)).is_replay_requested
        assert client.post("/sinks/replica/replay", params=given, headers=right).json() == {"replayed": 1}
        assert next(dead_letters.load_all(scene.store)).is_replay_requested
        assert client.get("/dead-letters", params={"sink": "../x"}, headers=right).status_code == 400


def test_assets_have_their_types_and_nothing_is_inline(scene: DashboardScene) -> None:
    with scene.serving() as url, httpx.Client(base_url=url) as client:
        page = client.get("/")
        policy = page.headers["content-security-policy"]
        assert "unsafe" not in policy
        assert "script-src 'self'" in policy
        assert "<style" not in page.text
        assert "style=" not in page.text
        for name, kind in (
            ("main.js", "text/javascript"),
            ("dashboard.css", "text/css"),
            ("icon.svg", "image/svg+xml"),
        ):
            answer = client.get(f"/assets/{name}")
            assert answer.headers["content-type"].startswith(kind)
            assert answer.headers["x-content-type-options"] == "nosniff"
        for name in ("nothing.js", "../http.py", "..%2fhttp.py", "index.html"):
            assert client.get(f"/assets/{name}").status_code == 404, name
