"""Settings: all faults are reported at once, and secrets are never shown."""

from __future__ import annotations

import copy
import json
import pickle
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import pytest
from psycopg.conninfo import conninfo_to_dict

from tailrace.cli.init import TEMPLATE
from tailrace.errors import ConfigError
from tailrace.settings import Secret, Settings, SourceSettings, load
from tailrace.settings.parser import Faults, read_section
from tailrace.settings.pattern import TablePattern
from tailrace.settings.slot_name import default_slot
from tailrace.sinks import from_settings

BOTH = {"TAILRACE_SOURCE_URL": "postgresql://u@h/d", "TAILRACE_STORE_URL": "file:///x"}


def write_config(directory: Path, text: str) -> Path:
    path = directory / "tailrace.toml"
    path.write_text(text)
    return path


def test_the_file_that_init_writes_states_the_defaults(tmp_path: Path) -> None:
    sections, _, example = TEMPLATE.partition("# Sinks: the destinations")
    lines = sections.splitlines()
    unset = ("password_file", "sslmode", "sslrootcert", "max_age_hours", "max_bytes", "endpoint", "region")
    query = ("users", "tls_cert", "tls_key", "memory_bytes", "threads", "temp_directory", "keep")
    for key in (*unset, *query, "port", "token"):
        assert any(line.startswith(f"# {key} = ") for line in lines), f"{key} is explained"
        lines = [line for line in lines if not line.startswith(f"# {key} = ")]
    stated = "\n".join(line.removeprefix("# ") if " = " in line and line.startswith("# ") else line for line in lines)
    found = load(write_config(tmp_path, stated), {})
    assert found == load(None, {"TAILRACE_SOURCE_URL": found.source.url, "TAILRACE_STORE_URL": found.store.url})
    for section in ("source", "store", "capture", "snapshot", "retention", "http", "query", "archive"):
        for key in asdict(getattr(Settings(), section)):
            assert key in TEMPLATE or key == "password", f"{section}.{key} is in the file"
    shown = [line.removeprefix("# ") for line in example.splitlines() if " = " in line or line.startswith("# [")]
    sink, *_ = from_settings(load(write_config(tmp_path, stated + "\n" + "\n".join(shown)), {}), {})
    assert sink.common.mask == {"*.*.email": "hash"}, "the first example of a sink has all common settings"


def test_the_environment_overrides_the_file(tmp_path: Path) -> None:
    path = write_config(
        tmp_path,
        """
        [source]
        url = "postgresql://u@h/d"
        tables = ["a.b"]
        [store]
        url = "s3://bucket"
        options = { region = "here", endpoint = "one" }
        [retention]
        max_bytes = 10
        """,
    )
    found = load(
        path,
        {
            "TAILRACE_SOURCE_TABLES": "x.*, y.z",
            "TAILRACE_STORE_OPTIONS_ENDPOINT": "two",
            "TAILRACE_CAPTURE_SEAL_AFTER_MS": "7",
            "TAILRACE_SNAPSHOT_ON_START": "false",
            "TAILRACE_RETENTION_MAX_AGE_HOURS": "1.5",
            "TAILRACE_CONFIG": "elsewhere",
            "TAILRACE_SERVICE_HOST": "10.0.0.1",  # Kubernetes sets these in pods next to a service named tailrace
        },
    )
    assert found.source.tables == ("x.*", "y.z")
    assert found.store.options == {"region": "here", "endpoint": "two"}
    assert (found.capture.seal_after_ms, found.snapshot.on_start) == (7, False)
    assert (found.retention.max_age_hours, found.retention.max_bytes) == (1.5, 10)
    assert load(None, {**BOTH, "TAILRACE_SOURCE_TABLES": """['a."b,c"']"""}).source.covers("a", "b,c")


def test_all_faults_are_reported_at_once(tmp_path: Path) -> None:
    path = write_config(
        tmp_path,
        """
        [source]
        url = 5
        slott = "x"
        slot = "Not-A-Slot"
        tables = ["public", "a.b"]
        sslmode = "verify-ful"
        publication = ""
        [stor]
        url = "s3://x"
        [capture]
        seal_after_ms = "fast"
        segment_bytes = 5
        status_interval_s = true
        [snapshot]
        workers = 1.5
        [http]
        port = 70000
        [[sink]]
        type = "iceberg"
        name = "lake"
        [[sink]]
        name = "lake"
        """,
    )
    with pytest.raises(ConfigError) as caught:
        load(path, {"TAILRACE_SNAPSHOT_WORKER": "3", "TAILRACE_SNAPSHOT_CHUNK_ROWS": "many"})
    message = str(caught.value)
    for words in (
        "stor is not a setting: did you mean store?",
        "source.slott is not a setting: did you mean source.slot?",
        "source.url is not a string",
        "source.slot 'Not-A-Slot'",
        "source.publication",
        "source.tables 'public' is not a pattern",
        "did you mean verify-full?",
        "store.url is missing",
        "capture.seal_after_ms is not a whole number",
        "capture.segment_bytes is 5",
        "capture.status_interval_s is not a number",
        "snapshot.workers is not a whole number",
        "http.port is 70000: must be at most 65535",
        "TAILRACE_SNAPSHOT_WORKER is not a setting: did you mean TAILRACE_SNAPSHOT_WORKERS?",
        "TAILRACE_SNAPSHOT_CHUNK_ROWS is not a whole number",
        "sink 2 has no type",
        "sink 2 has the name 'lake'",
    ):
        assert words in message
    assert "17 settings are wrong" in message


def test_only_what_a_command_needs_is_required() -> None:
    assert load(None, {"TAILRACE_STORE_URL": "file:///x"}, requires=["store"]).source.url == ""
    with pytest.raises(ConfigError, match=r"source\.url is missing"):
        load(None, {"TAILRACE_STORE_URL": "file:///x"})


@pytest.mark.parametrize("text", ["[source", "a = 1\na = 2", "sink = 1", "[sink]\nname = 'x'", "source = 1"])
def test_an_invalid_settings_file(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError):
        load(write_config(tmp_path, text), BOTH)


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file") as caught:
        load(tmp_path / "absent.toml", {})
    assert "tailrace init" in caught.value.hint


def test_sinks_are_read_as_written(tmp_path: Path) -> None:
    path = write_config(
        tmp_path, "[[sink]]\ntype = 'nats'\nname = 'n'\nurl = 'nats://u:planted@h'\nretry = { max = 3 }"
    )
    found = load(path, BOTH)
    assert found.sinks == ({"type": "nats", "name": "n", "url": "nats://u:planted@h", "retry": {"max": 3}},)
    assert "planted" not in repr(found)


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://u:planted@h:5433/d?application_name=x",
        "postgresql://u:planted@[::1]:5433,h2:5434/d",
        "postgresql://h/d?password=planted&sslmode=require",
        "host=h user='a b' password=planted dbname=d",
        "postgresql://u:planted@/d?host=/run/pg",
        "postgresql://u:planted@a,b/d?port=5433",
        "user=u password=planted service=s options='-c a=b'",
    ],
)
def test_a_password_in_the_url_is_moved_out_of_it(url: str) -> None:
    source = SourceSettings(url=url)
    assert "planted" not in repr(source)
    assert "planted" not in source.url
    assert source.password == Secret("planted")
    assert conninfo_to_dict(source.url) | {"password": "planted"} == conninfo_to_dict(url)


@pytest.mark.parametrize(
    "url", ["postgresql://u:plan ted@h/d", "host=h password='planted", "postgresql://u:planted%zz@h/d"]
)
def test_an_invalid_url_is_not_quoted(url: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(None, {**BOTH, "TAILRACE_SOURCE_URL": url})
    assert "plan" not in str(caught.value)
    assert caught.value.__cause__ is None


def test_password_precedence(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("from file\n")
    with_file = write_config(tmp_path, '[source]\nurl = "postgresql://u:from-url@h/d"\npassword_file = "secret"')

    def password(path: Path | None, **environ: str) -> str:
        found = load(path, {**BOTH, "PGPASSWORD": "from libpq"} | environ).source.password
        assert found is not None
        return found.reveal()

    store = {"TAILRACE_STORE_URL": "file:///x"}
    assert load(with_file, store).source.password == Secret("from file")
    assert load(with_file, store | {"TAILRACE_SOURCE_PASSWORD": "x"}).source.password == Secret("x")
    assert password(None) == "from libpq"
    assert password(None, TAILRACE_SOURCE_URL="postgresql://u:from-url@h/d") == "from-url"
    assert password(None, TAILRACE_SOURCE_PASSWORD="given") == "given"
    with pytest.raises(ConfigError, match="absent cannot be read"):
        load(None, {**BOTH, "TAILRACE_SOURCE_PASSWORD_FILE": "/absent"})


def test_a_secret_is_never_shown() -> None:
    secret = Secret("planted")
    for shown in (repr(secret), str(secret), f"{secret}", f"{secret!r:>30}", "%s" % secret, repr([secret])):  # noqa: UP031
        assert "planted" not in shown
    with pytest.raises(TypeError):
        json.dumps({"password": secret})
    with pytest.raises(TypeError):
        pickle.dumps(secret)
    assert "planted" not in json.dumps(asdict(SourceSettings(password=secret)), default=str)
    assert copy.deepcopy(secret) is secret
    assert not hasattr(secret, "__dict__")
    assert secret == Secret("planted") != Secret("other")
    assert secret.reveal() == "planted"


@pytest.mark.parametrize(
    ("pattern", "schema", "table", "is_match"),
    [
        ("public.*", "public", "orders", True),
        ("public.*", "Public", "orders", False),
        ("Public.ORDERS", "public", "orders", True),
        ('public."Orders"', "public", "Orders", True),
        ('public."Orders"', "public", "orders", False),
        ("*.order_?", "shop", "order_1", True),
        ("*.order_?", "shop", "order_12", False),
        ('public."a*"', "public", "abc", False),
        ('public."a*"', "public", "a*", True),
        ('"a.b"."c""d"', "a.b", 'c"d', True),
        ("public.x*", "public", "x\ny", True),
        ("public.a+b", "public", "aab", False),
        ("schéma.tablé", "schéma", "tablé", True),
        ("*.a*b?*c*", "public", "axxbyyc", True),
        ("*.a*b*c", "public", "abcbc", True),
        ("*.a**c", "public", "ac", True),
        ("*.a*b*b", "public", "ab", False),
        ("public." + "*?" * 20 + "x", "public", "y" * 63, False),  # would take years if every place were tried
    ],
)
def test_patterns(pattern: str, schema: str, table: str, is_match: bool) -> None:
    assert TablePattern.parse(pattern).matches(schema, table) == is_match


@pytest.mark.parametrize("text", ["orders", "", ".", "a.", ".b", "a.b.c", 'a."b', 'a."".b', "a. b", 'a.""'])
def test_invalid_patterns(text: str) -> None:
    with pytest.raises(ConfigError):
        TablePattern.parse(text)


@dataclass(frozen=True)
class _Choice:
    policy: Mapping[str, str] | str = "stop"


@pytest.mark.parametrize(
    ("given", "found"), [("null", "null"), ({"a.b": "null"}, {"a.b": "null"}), (3, None), ({"a": 3}, None)]
)
def test_a_setting_may_be_a_word_or_a_table(given: object, found: object) -> None:
    faults = Faults()
    values = read_section("choice", _Choice, {"policy": given}, {}, faults)
    assert values == ({} if found is None else {"policy": found})
    if found is None:
        with pytest.raises(ConfigError, match=r"choice.policy is not a table of strings or a string"):
            faults.raise_if_any("file")
    assert read_section("choice", _Choice, {}, {"TAILRACE_CHOICE_POLICY": "null"}, faults) == {"policy": "null"}


def test_the_default_slot_contains_the_databases_name() -> None:
    def slot(recorded: str | None = None, **given: str) -> str:
        source = {"TAILRACE_SOURCE_URL": "postgresql://me@host/shop", "TAILRACE_STORE_URL": "file:///log"}
        return load(None, source | given, find_slot=lambda _: recorded).source.slot

    assert slot() == "tailrace_shop"
    assert slot("tailrace") == "tailrace", "a log of an earlier version keeps its slot"
    assert slot("other", TAILRACE_SOURCE_SLOT="mine") == "mine"
    assert slot(TAILRACE_SOURCE_URL="postgresql://me@host") == "tailrace_me", "as libpq chooses the database"
    names = ["My-Shop", "my-shop", "my_shop", "x" * 63, "x" * 62 + "y", "ü"]
    found = [default_slot(name) for name in names]
    assert len(set(found)) == len(names)
    assert all(re.fullmatch("[a-z0-9_]{1,63}", name) for name in found)
