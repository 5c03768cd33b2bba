"""Where a command is typed: what the directory, the environment and the streams leave open."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dragoman.app.datadir import DataDir, Whereabouts
from dragoman.cli import arguments, hubclient
from dragoman.cli.errors import CommandError
from dragoman.cli.main import main


def left(directory: Path, hub: Any, token: str) -> None:
    found = DataDir(directory)
    found.prepare()
    found.announce(Whereabouts(hub.url, "127.0.0.1:1", token, os.getpid()))


def test_the_hub_of_the_settings_file_beside_it_is_found(
    hub: Any, run: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for variable in ("DRAGOMAN_URL", "DRAGOMAN_TOKEN"):
        monkeypatch.delenv(variable)
    hub.answers["GET /api/v1/tasks"] = (200, {"tasks": []})
    (tmp_path / "dragoman.toml").write_text('data = "kept"\n[server]\nport = 0\n')
    left(tmp_path / "kept", hub, "by-file")
    assert run("task", "ls").code == 0
    assert hub.asked[-1].headers["authorization"] == "Bearer by-file"
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    monkeypatch.setenv("DRAGOMAN_CONFIG", str(tmp_path / "dragoman.toml"))
    assert run("task", "ls").code == 0
    left(elsewhere / "named", hub, "by-name")
    monkeypatch.setenv("DRAGOMAN_DATA", "named")
    assert run("task", "ls").code == 0
    assert hub.asked[-1].headers["authorization"] == "Bearer by-name"


@pytest.mark.parametrize("text", ["data =", "data = 1", "", "[server]\nport = 1"])
def test_a_settings_file_that_names_no_directory_leaves_the_usual_one(
    run: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "dragoman.toml").write_text(text)
    assert "no hub is running in .dragoman\n" in run("task", "ls").err


def test_a_variable_that_is_set_to_nothing_is_not_set(
    run: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    for variable in ("URL", "TOKEN", "DATA", "CONFIG", "PORT", "RULES__IDLE_SECONDS"):
        monkeypatch.setenv(f"DRAGOMAN_{variable}", "")
    assert run("config", "show").err.startswith("✓")
    assert "no hub is running in .dragoman\n" in run("task", "ls").err


@pytest.mark.parametrize("stream", ["stdin", "stdout", "stderr"])
def test_a_stream_that_is_closed_is_no_error(hub: Any, monkeypatch: pytest.MonkeyPatch, stream: str) -> None:
    hub.answers["GET /api/v1/tasks"] = (200, {"tasks": []})
    monkeypatch.setattr(sys, stream, None)
    assert main(["task", "ls"]) == 0


@pytest.mark.parametrize(
    ("tokens", "next"), [(("task", "show", ""), "task ls"), (("agent", "show", "../tasks"), "agent ls")]
)
def test_a_name_that_would_be_another_address_is_nobodys(
    hub: Any, run: Any, tokens: tuple[str, ...], next: str
) -> None:
    ran = run(*tokens)
    assert (ran.code, hub.asked) == (3, [])
    assert ran.err == f"error: there is nothing with the id {tokens[-1]!r}\n  next: dragoman {next}\n"


def test_a_client_that_expects_tls_of_a_plain_hub_learns_so(hub: Any, run: Any) -> None:
    ran = run("task", "ls", "--hub", hub.url.replace("http", "https"))
    assert ran.code == 5
    assert "does not speak TLS" in ran.err
    assert f"--hub {hub.url}" in ran.err


@pytest.mark.parametrize(
    ("stdin", "said"),
    [(b"\xff", "stdin cannot be read"), (b"\xef\xbb\xbf{}", None), ('{"a": "\u00e9"}'.encode(), None)],
)
def test_json_on_stdin_is_utf_8_whatever_the_locale(
    monkeypatch: pytest.MonkeyPatch, stdin: bytes, said: str | None
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin), encoding="ascii", errors="surrogateescape"))
    if said is None:
        assert arguments.read(["-"]) == json.loads(stdin)
        return
    with pytest.raises(CommandError, match=said):
        arguments.read(["-"])


def test_an_argument_that_is_no_text_is_refused(hub: Any, run: Any) -> None:
    ran = run("call", "infra", "run", "name=\udcff")
    assert ran.code == 2
    assert "is not UTF-8" in ran.err


def test_ctrl_c_is_no_success(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(hubclient.Hub, "find", interrupted)
    assert run("task", "ls") == (130, "", "")


@pytest.mark.parametrize("tokens", [["--help"], ["task", "--help"], ["version"]])
def test_a_reader_that_has_seen_enough_is_no_failure(tokens: list[str]) -> None:
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "wb") as gone:
        done = subprocess.run(
            [sys.executable, "-m", "dragoman.cli", *tokens], stdout=gone, stderr=subprocess.PIPE, timeout=60
        )
    assert (done.returncode, done.stderr) == (0, b"")
