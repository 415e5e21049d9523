"""Options that every command accepts, what it logs, and how it ends."""

from __future__ import annotations

import json
import logging
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.capturing import tailrace
from tests.log.stream import Server, write

from tailrace.cli import COMMANDS, Invocation, main, output
from tailrace.store import Store


def run(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(tailrace(*arguments), env=os.environ | environ, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize(
    "arguments",
    [
        ["--config", "{}", "sink", "list"],
        ["sink", "--config", "{}", "list"],
        ["sink", "list", "--config", "{}"],
        ["status", "--config", "{}", "--log-level", "debug"],
    ],
    ids=" ".join,
)
def test_the_settings_file_can_stand_anywhere(arguments: list[str], tmp_path: Path) -> None:
    config = tmp_path / "elsewhere.toml"
    config.write_text(
        f'[store]\nurl = "{tmp_path.as_uri()}"\n[[sink]]\ntype = "files"\nname = "exported"\nurl = "/x"\n'
    )
    done = run(*(text.format(config) for text in arguments))
    assert done.returncode == 0, done.stderr
    assert "exported" in done.stdout


def test_every_command_has_help() -> None:
    runner = CliRunner()
    for command in COMMANDS:
        done = runner.invoke(main, [command, "-h"], prog_name="tailrace")
        assert done.exit_code == 0, done.output
        assert done.stdout.startswith(f"Usage: tailrace {command}")
        assert "--log-level" not in done.stdout, "the options that all commands have are in the help of tailrace"


def test_the_shell_completes_commands_and_sinks(tmp_path: Path) -> None:
    config = tmp_path / "tailrace.toml"
    config.write_text("".join(f'[[sink]]\ntype = "files"\nname = "{name}"\n' for name in ("lake", "late", "bus")))

    def completed(words: str) -> list[str]:
        count = str(len(words.split(" ")) - 1)
        done = run(_TAILRACE_COMPLETE="bash_complete", COMP_WORDS=words, COMP_CWORD=count, TAILRACE_CONFIG=str(config))
        assert done.stderr == ""
        return [line.removeprefix("plain,") for line in done.stdout.splitlines()]

    assert completed("tailrace sta") == ["status", "standby"]
    assert completed("tailrace sink re") == ["reload", "resume", "rewind"]
    assert completed("tailrace sink pause la") == ["lake", "late"]
    assert completed(f"tailrace --config {config} sink test b") == ["bus"]


@pytest.mark.parametrize(
    ("shell", "script"),
    [
        (
            ["zsh", "-f"],
            'autoload -Uz compinit; compinit -D; {}; print -- "$_comps[tailrace]"; functions $_comps[tailrace]',
        ),
        (["fish", "--no-config"], "{}; complete -C 'tailrace sta'"),
        (["bash", "--norc"], "{}; complete -p tailrace"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_shells_accept_their_completion(shell: list[str], script: str) -> None:
    if shutil.which(shell[0]) is None:
        pytest.skip(f"{shell[0]} is not installed")
    program = Path(sys.executable).parent / "tailrace"
    source = f"_TAILRACE_COMPLETE={shell[0]}_source {program}"
    load = f"{source} | source" if shell[0] == "fish" else f'eval "$({source})"'
    env = os.environ | {"PATH": f"{program.parent}:{os.environ['PATH']}"}
    done = subprocess.run([*shell, "-c", script.format(load)], env=env, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert "status" in done.stdout if shell[0] == "fish" else "_tailrace_completion" in done.stdout


def test_log_lines_as_json() -> None:
    record = logging.LogRecord("tailrace.capture", logging.WARNING, "", 0, "two %s", ("lines\nhere",), None)
    line = output.JsonFormatter().format(record)
    assert "\n" not in line
    fields = json.loads(line)
    assert fields.pop("time").endswith("+00:00")
    assert fields == {"level": "warning", "logger": "tailrace.capture", "message": "two lines\nhere"}


@pytest.mark.parametrize("command", ["deliver", "sink pause x"])
def test_the_last_error_is_json_too(command: str, tmp_path: Path) -> None:
    done = run(*command.split(), "--log-format", "json", TAILRACE_STORE_URL=tmp_path.as_uri())
    assert done.returncode == 2
    fields = json.loads(done.stderr)
    assert (fields["level"], fields["message"]) == ("error", "no sink is configured")
    assert fields["hint"].startswith("add one to tailrace.toml")


def test_child_processes_log_as_their_parent_does() -> None:
    command = Invocation(Path("a.toml"), logging.DEBUG, "json").child_command("capture")
    assert command[3:] == ["--log-level", "debug", "--log-format", "json", "--config", "a.toml", "capture"]


def test_lines_of_child_processes_stay_json() -> None:
    logged = json.dumps({"level": "info", "message": "hello"})
    assert json.loads(output.with_process("capture", logged)) == {
        "level": "info",
        "message": "hello",
        "process": "capture",
    }
    for line in ("# a line of Java's", "[1]", ""):
        wrapped = json.loads(output.with_process("deliver", line))
        assert (wrapped["process"], wrapped["message"], wrapped["level"]) == ("deliver", line, "info")


def test_a_reader_that_leaves_early_ends_a_command_quietly(tmp_path: Path) -> None:
    write(Store.open(tmp_path.as_uri()), Server(1).work(3000), most=100)
    env = os.environ | {"TAILRACE_STORE_URL": tmp_path.as_uri()}
    command = " ".join(tailrace("log", "cat"))
    done = subprocess.run(["sh", "-c", f"{command} | head -2"], env=env, capture_output=True, text=True, timeout=60)
    assert len(done.stdout.splitlines()) == 2
    assert done.stderr == ""
