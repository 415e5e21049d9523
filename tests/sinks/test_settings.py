"""Sinks are created from `[[sink]]` in the settings, or all faults are reported at once."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tailrace import settings
from tailrace.cli.init import TEMPLATE
from tailrace.delivery.sink_settings import ConfiguredSink, SinkSettings
from tailrace.errors import ConfigError
from tailrace.sinks import from_settings
from tailrace.sinks.files import FilesOptions, FilesSink


def sinks(tmp_path: Path, text: str, environ: dict[str, str] | None = None) -> list[ConfiguredSink]:
    path = tmp_path / "tailrace.toml"
    path.write_text(text)
    loaded = settings.load(path, environ or {}, requires=())
    return from_settings(loaded, environ or {})


def faults(tmp_path: Path, text: str, environ: dict[str, str] | None = None) -> str:
    with pytest.raises(ConfigError) as raised:
        sinks(tmp_path, text, environ)
    return str(raised.value)


WHOLE = """
[[sink]]
type = "files"
name = "lake-1"
url = "file:///tmp/x"
format = "parquet"
tables = ["public.*"]
exclude = ["public.audit"]
route = "raw.{database}_{schema}_{table}"
start = "latest"
interval_ms = 500
on_poison = "dead_letter"

[sink.options]
endpoint = "http://localhost"

[sink.columns]
"public.customers" = 'id, name, "Odd, one"'
"public.*" = "-internal_*"

[sink.mask]
"*.*.email" = "hash"

[sink.where]
"public.orders" = "total > 100 -- large ones"
'public."Order.Lines"' = "n IS NOT NULL"
"""


def test_all_settings(tmp_path: Path) -> None:
    (found,) = sinks(tmp_path, WHOLE)
    assert isinstance(found.sink, FilesSink)
    assert found.sink.values == "typed"
    assert found.name == "lake-1"
    assert found.common == SinkSettings(
        type="files",
        name="lake-1",
        tables=("public.*",),
        exclude=("public.audit",),
        route="raw.{database}_{schema}_{table}",
        start="latest",
        interval_ms=500,
        on_poison="dead_letter",
        columns={"public.customers": 'id, name, "Odd, one"', "public.*": "-internal_*"},
        mask={"*.*.email": "hash"},
        where={"public.orders": "total > 100 -- large ones", 'public."Order.Lines"': "n IS NOT NULL"},
    )


def test_environment_variables_override_settings(tmp_path: Path) -> None:
    environ = {
        "TAILRACE_SINK_LAKE_1_URL": "file:///tmp/y",
        "TAILRACE_SINK_LAKE_1_INTERVAL_MS": "7",
        "TAILRACE_SINK_LAKE_1_OPTIONS_REGION": "here",
    }
    (found,) = sinks(tmp_path, WHOLE, environ)
    assert isinstance(found.sink, FilesSink)
    assert found.common.interval_ms == 7
    assert found.sink._options == FilesOptions(
        "file:///tmp/y", {"endpoint": "http://localhost", "region": "here"}, "parquet"
    )


@pytest.mark.parametrize(
    ("lines", "fault"),
    [
        ('type = "fils"\nname = "a"', "type 'fils' is not a sink: did you mean files?"),
        ('type = "no.such.module:Sink"\nname = "a"', "no module no"),
        ('type = "tailrace.sinks.files:Nope"\nname = "a"', "tailrace.sinks.files has no Nope"),
        ('type = "files"\nname = "a b"\nurl = "/x"', "is not a sink name"),
        ('type = "files"\nname = "a"', "url is missing"),
        (
            'type = "files"\nname = "a"\nurl = "/x"\nformt = "jsonl"',
            "formt is not a setting: did you mean sink a: format?",
        ),
        ('type = "files"\nname = "a"\nurl = "/x"\nformat = "csv"', "is 'csv'"),
        ('type = "files"\nname = "a"\nurl = "/x"\ntables = ["public"]', "sink a: tables 'public' is not a pattern"),
        ('type = "files"\nname = "a"\nurl = "/x"\nroute = "{shema}.{table}"', "sink a: route is not a template"),
        ('type = "files"\nname = "a"\nurl = "/x"\nroute = "{table.__class__}"', "sink a: route is not a template"),
        ('type = "files"\nname = "a"\nurl = "/x"\nroute = "{table!r}"', "sink a: route is not a template"),
        ('type = "files"\nname = "a"\nurl = "/x"\nroute = "x."', "sink a: route is not a template"),
        (
            'type = "files"\nname = "a"\nurl = "/x"\n[sink.mask]\n"a.b.c" = "hsh"',
            "mask of a.b.c is 'hsh': did you mean hash?",
        ),
        ('type = "files"\nname = "a"\nurl = "/x"\n[sink.mask]\n"a.b" = "hash"', "'a.b' is not a pattern of columns"),
        ('type = "files"\nname = "a"\nurl = "/x"\n[sink.columns]\n"a.b" = "c, -d"', "'c, -d' is not a list of columns"),
        ('type = "files"\nname = "a"\nurl = "/x"\n[sink.columns]\n"a.b" = ""', "'' is not a list of columns"),
        ('type = "files"\nname = "a"\nurl = "/x"\n[sink.columns]\na.b = "c"', "is not a table of strings"),
        ('type = "files"\nname = "a"\nurl = "/x"\n[sink.where]\n"a.b" = "n >"', "'n >' cannot be parsed: syntax error"),
        ('type = "files"\nname = "a"\nurl = "/x"\n[sink.where]\n"a.b" = "n > random()"', "calls random"),
        ('type = "files"\nname = "a"\nurl = "/x"\ninterval_ms = -1', "at least 0"),
    ],
)
def test_invalid_settings(tmp_path: Path, lines: str, fault: str) -> None:
    assert fault in faults(tmp_path, f"[[sink]]\n{lines}\n")


def test_the_faults_of_all_sinks_are_reported_together(tmp_path: Path) -> None:
    text = faults(
        tmp_path,
        '[[sink]]\ntype = "files"\nname = "a"\nurl = "/x"\nroute = "{x}"\nformat = "csv"\n'
        '[[sink]]\ntype = "nope"\nname = "b"\n',
        {"TAILRACE_SINK_A_FORMT": "jsonl"},
    )
    assert text.splitlines()[0].endswith("4 settings are wrong")


def test_variables_apply_to_the_sink_they_name(tmp_path: Path) -> None:
    text = "".join(f'[[sink]]\ntype = "files"\nname = "{name}"\nurl = "/x"\n' for name in ("lake", "lake_2"))
    environ = {"TAILRACE_SINK_LAKE_URL": "/one", "TAILRACE_SINK_LAKE_2_URL": "/two"}
    found = [configured_.sink for configured_ in sinks(tmp_path, text, environ)]
    assert [sink._options.url for sink in found if isinstance(sink, FilesSink)] == ["/one", "/two"]


def test_the_example_in_the_template_is_valid(tmp_path: Path) -> None:
    example = TEMPLATE[TEMPLATE.index("# [[sink]]") :]
    lines = [line.removeprefix("# ") for line in example.splitlines() if re.match(r'# (\[|"|\w+ = )', line)]
    found, *others = sinks(tmp_path, "\n".join(lines))
    types = ["postgres", "iceberg", "audit", "nats", "mysql", "kafka", "rabbitmq", "webhook", "opensearch", "valkey"]
    assert [configured.common.type for configured in others] == types
    assert isinstance(found.sink, FilesSink)
    assert found.common.where == {"public.orders": "total > 100"}


def test_a_sink_of_another_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("elsewhere")
    made: list[Any] = []

    class Mine:
        Options = FilesOptions
        start = "snapshot"

        def __init__(self, *arguments: Any) -> None:
            made.append(arguments)

    module.Mine = Mine  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "elsewhere", module)
    (found,) = sinks(tmp_path, '[[sink]]\ntype = "elsewhere:Mine"\nname = "m"\nurl = "z"\n')
    assert isinstance(found.sink, Mine)
    assert made[0][:2] == ("m", FilesOptions(url="z"))
