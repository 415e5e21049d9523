"""Searches output, store, arguments, errors and the server's log for a planted password."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import pickle
import subprocess
import threading
import traceback
from collections.abc import Iterator, Mapping
from pathlib import Path
from urllib.parse import quote

import httpx
import psutil
import pytest
from tests.capturing import tailrace
from tests.contract.webhook_receiver import Answer, HttpReceiver, Received
from tests.fixtures.postgres import running

from tailrace import settings
from tailrace.capture.capture import Capture
from tailrace.capture.postgres.source_connection import connect
from tailrace.embedded.postgres import Postgres
from tailrace.embedded.process import free_port
from tailrace.embedded.s3 import S3Server
from tailrace.errors import ConfigError, TailraceError
from tailrace.log.reader import LogReader
from tailrace.log.snapshot import SnapshotReader
from tailrace.store import Store

# The first part is found even if the rest is escaped.
TOKEN = "Pl4nted7Zq"
PASSWORD = f"{TOKEN} /@:%'ü\\"
WRONG = f"{TOKEN}-but-wrong"
ENCODED = [base64.b64encode(b"\0" * lead + TOKEN.encode())[4:-4].strip(b"=") for lead in range(3)]


def assert_nowhere(*places: bytes | str) -> None:
    for place in places:
        text = place.encode() if isinstance(place, str) else place
        for form in (TOKEN.encode(), TOKEN[::-1].encode(), TOKEN.encode("utf-16-le"), TOKEN.encode().hex().encode()):
            assert form not in text
        assert not any(form in text for form in ENCODED)


@pytest.fixture(scope="module")
def password_server() -> Iterator[Postgres]:
    """A server that requires a password, and logs every statement."""
    with running(
        18, auth="scram-sha-256", password=PASSWORD, log_statement="all", log_replication_commands=True
    ) as server:
        with server.connect() as connection:
            connection.execute("CREATE TABLE t (id int PRIMARY KEY, note text)")
            connection.execute("INSERT INTO t SELECT n, repeat('x', 100) FROM generate_series(1, 1000) n")
        yield server
        assert_nowhere(server.log.read_bytes())


class Machine:
    """A machine for `tailrace`: a directory with its configuration, an environment and a store."""

    def __init__(self, server: Postgres, directory: Path) -> None:
        self.server = server
        self.directory = directory
        self.store = Store.open((directory / "store").as_uri())
        unrelated = {name: value for name, value in os.environ.items() if not name.startswith(("PG", "TAILRACE"))}
        self.env = {
            **unrelated,
            "TAILRACE_STORE_URL": self.store.url,
            "TAILRACE_SOURCE_SLOT": directory.name[-20:].lower(),
        }

    def configure(self, how: str, password: str) -> None:
        url, more = self.server.url, ""
        match how:
            case "environment":
                self.env["PGPASSWORD"] = password
            case "url":
                url = url.replace("@", f":{quote(password, safe='')}@")
            case "file":
                (self.directory / "secret").write_text(password + "\n")
                more = 'password_file = "secret"'
        (self.directory / "tailrace.toml").write_text(f'[source]\nurl = "{url}"\n{more}\n')

    def run(self, *arguments: str) -> tuple[int, str]:
        """Return exit code and output; meanwhile, search what the processes expose."""
        process = subprocess.Popen(
            tailrace(*arguments),
            env=self.env,
            cwd=self.directory,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        self.processes: set[str] = set()
        while process.poll() is None:
            self._look(psutil.Process(process.pid))
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(0.05)
        output, _ = process.communicate(timeout=60)
        assert_nowhere(output)
        return process.returncode, output

    def _look(self, process: psutil.Process) -> None:
        for found in [process, *process.children(recursive=True)]:
            try:
                shown = "\0".join([found.name(), *found.cmdline()])
                environment: Mapping[str, str] = found.environ()
            except psutil.Error:
                continue
            self.processes.add(shown)
            assert_nowhere(shown)
            if "PGPASSWORD" not in self.env:
                assert_nowhere(*environment.values())

    def assert_clean(self) -> None:
        objects = [info.key for info in self.store.list("")]
        assert objects
        assert_nowhere(*objects, *(self.store.get(key) or b"" for key in objects))
        # Rows are compressed in there.
        changes = list(LogReader(self.store).changes())
        batches = [str(b.to_pydict()) for s in SnapshotReader(self.store).list() for b in s.chunks()]
        assert_nowhere(repr(changes), *batches)


@pytest.fixture
def machine(password_server: Postgres, tmp_path: Path) -> Iterator[Machine]:
    machine = Machine(password_server, tmp_path)
    yield machine
    with password_server.connect() as connection:
        connection.execute("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots")
        connection.execute("DROP PUBLICATION IF EXISTS tailrace")


@pytest.mark.parametrize("how", ["environment", "url", "file"])
def test_passwords_are_written_nowhere(machine: Machine, how: str) -> None:
    machine.configure(how, PASSWORD)
    code, output = machine.run("check")
    assert (code, "capture can run" in output) == (0, True), output
    code, output = machine.run("capture", "--until-lsn", "current")
    assert code == 0, output
    assert any("multiprocessing" in process for process in machine.processes), "no snapshot worker was seen"
    if how == "file":
        with machine.server.connect() as connection:
            connection.execute("UPDATE t SET note = 'y' WHERE id < 10")
        code, output = machine.run("capture", "--until-lsn", "current")
        assert code == 0, output
        code, output = machine.run("snapshot", "public.t")
        assert (code, "copied 1 table" in output) == (0, True), output
        code, output = machine.run("log", "cat", "--json")
        assert (code, output.count("UPDATE")) == (0, 9)
    machine.assert_clean()


@pytest.mark.parametrize("how", ["environment", "url", "file"])
def test_a_rejected_password_is_not_quoted(machine: Machine, how: str) -> None:
    machine.configure(how, WRONG)
    for command in (["check"], ["capture"], ["snapshot", "public.t"]):
        code, output = machine.run(*command)
        assert code == 1
        assert "password authentication failed" in output
        assert "check user and password" in output.lower()


def test_an_unreachable_url_is_not_quoted(machine: Machine) -> None:
    """Only the operator's environment may contain it, and connecting is not retried forever."""
    machine.env["PGPASSWORD"] = "unused"
    for url, code in [
        (f"postgresql://postgres:{TOKEN}@127.0.0.1:port/postgres", 1),
        (f"postgresql://postgres:{TOKEN}%zz@127.0.0.1/postgres", 2),
        (f"host=127.0.0.1 password='{TOKEN}", 2),
        (f"host=127.0.0.1 port=70000 user=postgres dbname=postgres password={TOKEN}", 1),
    ]:
        machine.env["TAILRACE_SOURCE_URL"] = url
        found, output = machine.run("capture")
        assert (found, "source.url" in output) == (code, True), output
    machine.env["TAILRACE_SOURCE_URL"] = f"postgresql://postgres@127.0.0.1:1/postgres?password={TOKEN}"
    found, output = machine.run("check")
    assert (found, "Connection refused" in output) == (1, True), output


def test_errors_and_settings_do_not_contain_the_password(password_server: Postgres, tmp_path: Path) -> None:
    machine = Machine(password_server, tmp_path)
    for how, password in [("url", PASSWORD), ("file", WRONG), ("environment", WRONG)]:
        machine.configure(how, password)
        loaded = settings.load(tmp_path / "tailrace.toml", machine.env)
        assert loaded.source.password is not None
        assert loaded.source.password.reveal() == password
        assert_nowhere(repr(loaded), str(loaded), f"{loaded.source.password}", loaded.source.url)
        with pytest.raises(TypeError, match="secret cannot be pickled"):
            pickle.dumps(loaded)
        if password == WRONG:
            for attempt in (lambda s=loaded: connect(s.source), Capture(loaded, machine.store).run):
                with pytest.raises(TailraceError) as raised:
                    attempt()
                error = raised.value
                assert_nowhere(str(error), repr(error), error.hint, pickle.dumps(error))
                assert_nowhere(*traceback.format_exception(error))
                chain: BaseException | None = error
                while chain is not None:
                    assert_nowhere(repr(chain))
                    chain = chain.__context__ or chain.__cause__
    with pytest.raises(ConfigError) as refused:
        settings.load(
            None, {"TAILRACE_SOURCE_URL": f"postgresql://u:{TOKEN}%zz@h/d", "TAILRACE_STORE_URL": "file:///x"}
        )
    assert_nowhere(*traceback.format_exception(refused.value), pickle.dumps(refused.value))


_WEBHOOK = """
    [[sink]]
    type = "webhook"
    name = "hook"
    url = "{url}/{token}?key={token}"
    secret = "{key}"
    batch = 50
    allow_private = true
    start = "snapshot"
    headers = {{ "X-Api-Key" = "{token}" }}
    """
_CREDENTIALS = {
    "oauth": """
        oauth_url = "{url}/token?key={token}"
        oauth_client_id = "client"
        oauth_client_secret = "{token}"
        """,
    "basic": """
        user = "ann"
        password = "{token}"
        """,
}


@pytest.mark.parametrize("how", ["oauth", pytest.param("basic", marks=pytest.mark.soak)])
def test_secrets_of_a_webhook_are_written_nowhere(machine: Machine, how: str) -> None:
    """Neither when it delivers, nor when the receiver or the token server rejects them."""
    machine.configure("file", PASSWORD)
    code, output = machine.run("capture", "--until-lsn", "current")
    assert code == 0, output
    is_accepted = False

    def react(received: Received) -> Answer:
        body = json.dumps({"access_token": TOKEN, "token_type": "bearer"}).encode()
        return Answer(200 if is_accepted else 403, {}, body)

    with HttpReceiver(react, secret="") as server:
        names = {
            "url": f"http://127.0.0.1:{server.port}",
            "token": TOKEN,
            "key": f"whsec_{base64.b64encode(TOKEN.encode() * 3).decode()}",
        }
        config = machine.directory / "tailrace.toml"
        config.write_text(config.read_text() + (_WEBHOOK + _CREDENTIALS[how]).format(**names))
        _, output = machine.run("check")
        assert "403" in output
        if how == "basic":  # starting Spark twice takes long
            code, output = machine.run("deliver", "--once")
            assert (code, "answered 403" in output) == (1, True), output
            code, output = machine.run("status")
            assert (code, "answered 403" in output) == (0, True), output
        is_accepted = True
        code, output = machine.run("deliver", "--once")
        assert code == 0, output
        hooked = [received for received in server.accepted if received.path == f"/{TOKEN}?key={TOKEN}"]
        assert sum(len(received.changes) for received in hooked if received.method == "POST") >= 1000
        assert all(received.headers["x-api-key"] == TOKEN for received in hooked)
        assert {received.headers["authorization"].split()[0] for received in hooked} == {
            "Bearer" if how == "oauth" else "Basic"
        }
    machine.assert_clean()


_SPARK = """
    spark.eventLog.enabled true
    spark.eventLog.compress false
    spark.eventLog.dir {logs}
    spark.ui.port {port}
    """
_PAGES = ("environment/", "jobs/", "SQL/", "StreamingQuery/", "executors/", "api/v1/applications/{id}/environment")
_SINKS = """
    [spark]
    ui = true
    [store.options]
    {options}
    [[sink]]
    type = "postgres"
    name = "replica"
    url = "{replica}"
    [[sink]]
    type = "iceberg"
    name = "lake"
    warehouse = "{warehouse}"
    catalog = "{replica}"
    [sink.options]
    {options}
    """


@pytest.mark.soak
def test_spark_shows_no_secrets(machine: Machine) -> None:
    """Neither on its pages, nor in its event logs, nor does anything log them at the level debug."""
    machine.configure("file", PASSWORD)
    server = machine.server
    server.create_database("replica")
    conf, logs, port = machine.directory / "conf", machine.directory / "logs", free_port()
    for directory in (conf, logs):
        directory.mkdir()
    (conf / "spark-defaults.conf").write_text(_SPARK.format(logs=logs.as_uri(), port=port))
    machine.env["SPARK_CONF_DIR"] = str(conf)
    with S3Server() as s3:
        machine.env["TAILRACE_STORE_URL"] = s3.url_of("store")
        config = machine.directory / "tailrace.toml"
        replica = server.url_of("replica").replace("@", f":{quote(PASSWORD, safe='')}@")
        options = "\n".join(f'{name} = "{value}"' for name, value in s3.options.items())
        config.write_text(
            config.read_text() + _SINKS.format(options=options, replica=replica, warehouse=s3.url_of("w"))
        )
        secrets = [s3.options["secret_access_key"], TOKEN]
        code, output = machine.run("--log-level", "debug", "capture", "--until-lsn", "current")
        assert code == 0, output
        with _reading_pages(port) as pages:
            code, delivered = machine.run("--log-level", "debug", "deliver", "--once")
        assert code == 0, delivered
        (log,) = [path for path in logs.rglob("*") if path.is_file() and path.stat().st_size > 10_000]
    assert "environment/" in pages
    assert "SparkListenerJobEnd" in log.read_text()
    for place in (output, delivered, log.read_text(), *pages.values(), *machine.processes):
        assert_nowhere(place)
        assert not [secret for secret in secrets if secret in place]


@contextlib.contextmanager
def _reading_pages(port: int) -> Iterator[dict[str, str]]:
    """Read Spark's pages again and again until the end of the context. Returns the last of each."""
    found: dict[str, str] = {}
    is_over = threading.Event()

    def read() -> None:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", follow_redirects=True) as client:
            while not is_over.wait(0.2):
                with contextlib.suppress(httpx.HTTPError, IndexError):
                    (id_,) = (each["id"] for each in client.get("api/v1/applications").json())
                    for page in _PAGES:
                        answer = client.get(page.format(id=id_))
                        if answer.status_code == 200:
                            found[page] = answer.text

    reader = threading.Thread(target=read)
    reader.start()
    try:
        yield found
    finally:
        is_over.set()
        reader.join()
